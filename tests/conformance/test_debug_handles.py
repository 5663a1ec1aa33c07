"""The debug handles that a backend returns stay with its delegates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import BACKEND

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram


def handles(program: ExportedProgram) -> list[dict[int, tuple[int, ...]]]:
    from etbuild.lower import named_data

    return [delegate.meta["debug_handle_map"] for delegate in named_data.delegates(program.graph_module)]


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EdgeProgramManager]:
    """Two methods, lowered as the driver lowers them, for a backend that returns debug handles."""
    import torch

    from etbuild.guard.reads import watched_reads
    from etbuild.inputs.sources import read_sources
    from etbuild.inputs.user_code import importable
    from etbuild.lower import lower_methods
    from etbuild.plan.plan import from_manifest

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin().cos().exp().sin()

    monkeypatch.setenv("DEMO_BACKEND_RECORD", str(tmp_path / "calls"))
    (tmp_path / "demo_backend.py").write_text(BACKEND)
    kwargs = {"operators": ["sin", "cos"], "backend": "SingleBackend"}
    partitioner = {"backend": "custom", "options": {"factory": "demo_backend:take", "kwargs": kwargs}}
    method = {"example_inputs": [{"shape": [3]}], "partitioners": [partitioner]}
    manifest: Any = {"name": "net", "model": {"factory": "net:create"}, "methods": dict.fromkeys(("a", "b"), method)}
    programs = {name: torch.export.export(Net(), (torch.ones(3),)) for name in ("a", "b")}
    with importable(read_sources({"demo_backend.py": tmp_path / "demo_backend.py"}), [], watched_reads):
        yield lower_methods.lower_programs(from_manifest(manifest).lower_plan, programs, {})


EXPECTED = [{0: (1,), 1: (2,)}, {0: (4,)}]  # by its own numbers: `sin` and `cos`, then the last `sin`


def test_debug_handle_maps_are_kept(edge: EdgeProgramManager) -> None:
    """The maps are kept up to the content of ExecuTorch's ETRecord."""
    assert {name: handles(edge.exported_program(name)) for name in sorted(edge.methods)} == {
        "a": EXPECTED,
        "b": EXPECTED,
    }
    emitted = edge.to_executorch().delegate_map
    assert [entry["delegate_map"] for entry in emitted["a"].values()] == EXPECTED
