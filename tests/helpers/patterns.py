"""Traces the patterns of quantizers once in a process, which saves most of the time of tests that quantize."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Hashable, Iterator
from types import FunctionType
from typing import Any

import torch
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils
from torchao.quantization.pt2e import qat_utils, utils

from etbuild.patching import replaced

_trace = utils._get_aten_graph_module_for_pattern


@contextlib.contextmanager
def traced_once() -> Iterator[None]:
    """Returns a context manager in which a pattern that was traced before is a copy of the first trace.

    XNNPACK's quantizer exports twelve patterns, such as a convolution with a batch norm, for each method. The patterns
    depend on nothing in the method. torchao's training exports more than a hundred.
    """
    known: dict[Hashable, torch.fx.GraphModule] = {}

    def trace(
        pattern: torch.nn.Module, example_inputs: tuple[Any, ...], is_cuda: bool = False, **kwargs: Any
    ) -> torch.fx.GraphModule:
        shapes = tuple(map(_described, (*example_inputs, *kwargs.values())))
        key = (_identity(pattern.fn), shapes, is_cuda, *kwargs)
        if key not in known:
            known[key] = _trace(pattern, example_inputs, is_cuda, **kwargs)
        return copy.deepcopy(known[key])

    with contextlib.ExitStack() as replacements:
        for module in (utils, qat_utils, xnnpack_quantizer_utils):
            replacements.enter_context(replaced(module, "_get_aten_graph_module_for_pattern", trace))
        yield


def _described(value: object) -> object:
    """What an exported graph has of an input."""
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else value


def _identity(value: object) -> object:
    """A value that two functions share if they have the same code and the same variables around it."""
    if not isinstance(value, FunctionType):
        return value
    cells = tuple(_identity(cell.cell_contents) for cell in value.__closure__ or ())
    return (value.__code__, value.__defaults__, cells)
