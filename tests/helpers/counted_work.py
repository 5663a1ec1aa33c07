"""Counts how often PyTorch and ExecuTorch do what switches or patches avoid, and runs tests that patches add.

`python -m tests.helpers.counted_work REQUEST` writes JSON. Each part of the request runs in a fork of one process, so
that none uses what another one has cached. The process imports no test and no pytest, since a patched process would
import these from patched packages.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import os
import sys
import typing
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import executorch.exir

    IMPORTED_INDUCTOR = "torch._inductor.fx_passes.post_grad" in sys.modules
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir.pass_base import _ExportPassBase
    from torch._export.serde import serialize
    from torch.export import exported_program
    from torch.fx import Graph, GraphModule
    from torch.fx import graph_module as fx
    from torch.fx.passes.utils.matcher_utils import SubgraphMatcher
    from torch.fx.traceback import NodeSource
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

# For each switch, the work that it avoids: where the function is that does it.
PLACES: dict[str, tuple[Any, str]] = {
    "annotate_where_possible": (xnnpack_quantizer_utils, "_get_aten_graph_module_for_pattern"),
    "compile_on_demand": (fx, "_forward_from_src"),
    "decompose_if_needed": (exported_program, "_decompose_exported_program"),
    "match_where_possible": (SubgraphMatcher, "__init__"),
    "partition_without_printing": (GraphModule, "__str__"),
    "read_hints_once": (typing, "get_type_hints"),
    "replay_once": (_ExportPassBase, "call_submodule"),
    "save_without_canonical_form": (serialize, "_canonicalize_graph"),
    "share_provenance": (NodeSource, "__reduce_ex__"),
    "share_weights": (torch.nn.Parameter, "__deepcopy__"),
    "sort_in_place": (Graph, "node_copy"),
}


class Net(torch.nn.Module):
    """Several delegates, with portable operators in between, and a weight that is a part of its storage."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))
        self.part = torch.nn.Parameter(torch.ones(8)[:4])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear in self.linears:
            x = torch.nn.functional.hardswish(linear(x) + x).cumsum(-1)
        return (x * self.part).softmax(-1)


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Returns a context manager that counts calls of `PLACES`."""
    counts: Counter[str] = Counter(dict.fromkeys(PLACES, 0))

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **keywords)

        return call

    with contextlib.ExitStack() as stack:
        for name, (owner, attribute) in PLACES.items():
            stack.enter_context(patch.object(owner, attribute, counting(name, getattr(owner, attribute))))
        yield counts


def work(switches: list[str]) -> dict[str, Any]:
    """Exports, quantizes, saves, loads and lowers, with these switches.

    Returns:
        `counts`: calls by switch; `programs`: the digests of both programs.
    """
    with counted() as counts:
        from etplugins.accelerate.occasions import entered  # switches wrap the counting functions

        with entered(switches):
            programs = [_program(quantize) for quantize in (False, True)]
    return {"counts": counts, "programs": [hashlib.sha256(program).hexdigest() for program in programs]}


def _program(quantize: bool) -> bytes:
    torch.manual_seed(0)
    convolutions = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Conv2d(2, 1, 3))
    module, x = (convolutions, torch.ones(1, 1, 8, 8)) if quantize else (Net(), torch.ones(1, 4))
    exported = torch.export.export(module.eval(), (x,))
    if quantize:
        quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
        prepared = prepare_pt2e(exported.module(), quantizer)
        prepared(torch.randn(x.shape))
        exported = torch.export.export(convert_pt2e(prepared), (x,))
    saved = io.BytesIO()
    torch.export.save(exported, saved)
    saved.seek(0)
    loaded = torch.export.load(saved)
    edge = executorch.exir.to_edge_transform_and_lower(loaded, partitioner=[XnnpackPartitioner()])
    return bytes(edge.to_executorch().buffer)


def run_tests(files: list[str]) -> dict[str, list[str]]:
    """Runs the tests of files.

    Returns:
        For each file, what failed.
    """
    return {file: _run_file(file) for file in files}


def _run_file(file: str) -> list[str]:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(sys.stderr, warnings="ignore").run(suite)
    none = [] if result.testsRun else ["no test ran"]
    return [f"{case}: {what}" for case, what in (*result.failures, *result.errors)] + none


def in_a_fork(function: Callable[[], Any]) -> Any:
    """Returns what a function returns in a fork. Its result must be JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as file:
                json.dump(function(), file)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text)


def main(request: str) -> None:
    """Does what a request says: `{"work": [SWITCHES, ...], "tests": [FILE, ...]}`.

    The JSON also says whether ExecuTorch's import imported TorchInductor.
    """
    torch.set_num_threads(1)  # a fork has no threads of the pool
    asked = json.loads(request)
    done = {
        "imported_inductor": IMPORTED_INDUCTOR,
        "work": [in_a_fork(functools.partial(work, switches)) for switches in asked.get("work", [])],
        "tests": run_tests(asked.get("tests", [])),
    }
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1])
