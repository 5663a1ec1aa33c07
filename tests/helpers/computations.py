"""Computations whose results depend on the processor and on the number of threads, if nothing holds them.

Code of a model can do each of them while a build runs. The module runs by itself, and can be a source of a model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

_LIBRARIES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")


def _processor(threads: int, *choices: str) -> dict[str, str]:
    of_threads = dict.fromkeys(["MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"], str(threads))
    return {**dict(zip(_LIBRARIES, choices, strict=True)), "GLIBC_TUNABLES": "", **of_threads}


AVX2 = _processor(2, "avx2", "AVX2", "AVX2", "Haswell", "")
"""The variables that ask each library for the instructions of a processor with AVX2, and for two threads."""
SSE4 = _processor(4, "default", "SSE4_2", "SSE41", "Nehalem", "AVX F16C FMA3 AVX2")
"""The same for an older processor, and for four threads."""


def _pytorch() -> Iterator[tuple[str, Callable[[], Any]]]:
    square, images, line = torch.randn(200, 200), torch.randn(16, 16, 32, 32), torch.randn(400_000)
    definite, double = square @ square.T + 200 * torch.eye(200), line.double()
    yield "orthogonal", lambda: torch.nn.init.orthogonal_(torch.empty(64, 64))
    yield "normal", lambda: torch.randn(1000, 100)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        yield f"matmul {dtype}", partial(_squared, square.to(dtype))
    for name in ("cholesky", "inv", "eigvalsh", "svd", "qr", "matrix_exp"):
        yield f"linalg.{name}", partial(getattr(torch.linalg, name), definite)
    for name, shape in {
        "conv2d": (32, 16, 3, 3),
        "conv_transpose2d": (16, 8, 3, 3),
        "pointwise": (32, 16, 1, 1),
    }.items():
        function = getattr(functional, name, functional.conv2d)
        yield name, partial(function, images, torch.randn(shape))
    yield "depthwise", lambda: functional.conv2d(images, torch.randn(16, 1, 3, 3), groups=16)
    yield "conv1d", lambda: functional.conv1d(images[0], torch.randn(8, 32, 3))
    yield "fft", lambda: torch.view_as_real(torch.fft.rfft(line))
    yield "lstm", lambda: torch.nn.LSTM(32, 32)(images[0])[0]
    yield "attention", lambda: functional.scaled_dot_product_attention(images, images, images)
    yield "bag", lambda: functional.embedding_bag(torch.arange(200).view(20, 10), square)
    yield "layer norm", lambda: functional.layer_norm(square, (200,))
    yield "gelu", lambda: functional.gelu(line)
    yield "training", lambda: _train(images)
    for name in ("exp", "sin", "tanh", "sigmoid", "erf", "expm1", "sum", "std", "prod"):
        yield f"{name} of float32", partial(getattr(torch, name), line)
        yield f"{name} of float64", partial(getattr(torch, name), double)
    yield "power", lambda: double.abs() ** 0.3


def _numpy() -> Iterator[tuple[str, Callable[[], Any]]]:
    square, line = np.random.rand(200, 200), np.random.rand(300_000) * 10
    for dtype in (np.float32, np.float64):
        for name in ("exp", "sin", "tanh", "log", "log1p", "arctan", "sum", "std", "cumsum"):
            yield f"numpy.{name} of {dtype.__name__}", partial(getattr(np, name), line.astype(dtype))
        yield f"numpy.matmul of {dtype.__name__}", partial(_squared, square.astype(dtype))
    for name in ("inv", "svd", "qr", "eigvalsh"):
        yield f"numpy.linalg.{name}", partial(getattr(np.linalg, name), square + square.T)
    yield "numpy power", lambda: line**0.3
    yield "numpy fft", lambda: np.fft.fft(square).view(np.float64)
    yield "numpy complex", lambda: (square + 1j * square.T) * (square - 1j)
    functions = (math.exp, math.sin, math.tan, math.log, math.atan, math.tanh, math.gamma, math.erf)
    yield "math", lambda: np.array([[function(value) for function in functions] for value in line[:20_000].tolist()])


def _squared(matrix: Any) -> Any:
    return matrix @ matrix


def _train(images: torch.Tensor) -> torch.Tensor:
    layers = (torch.nn.Conv2d(16, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(7200, 10))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(images).square().sum().backward()
        optimizer.step()
    return torch.cat([parameter.flatten() for parameter in model.parameters()])


def digests() -> dict[str, str]:
    """Returns the beginning of a digest of each computation's result."""
    torch.manual_seed(0)
    np.random.seed(0)
    with torch.enable_grad():
        return {name: _digest(compute()) for name, compute in (*_pytorch(), *_numpy())}


def _digest(value: Any) -> str:
    found = hashlib.sha256()
    for each in value if isinstance(value, tuple) else (value,):
        array = each.detach().to(torch.float64).numpy() if isinstance(each, torch.Tensor) else each
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:12]


if __name__ == "__main__":
    print(json.dumps(digests()))
