"""Workarounds before and after backends get methods: see `etbuild.workarounds.OfLowering`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from executorch.exir import EdgeProgramManager
from torch.export import ExportedProgram

from etplugins.upstream import (
    constant_parts,
    dequantize,
    linear_layers,
    nonzero_rows,
    norms,
    old_buffers,
    sizes_of_splits,
    tanh_gelu,
)


def change_exported(program: ExportedProgram, *, exact_gelu: Collection[str], weight_only_linear: bool) -> None:
    """Marks what comes from hooks of linear layers, and writes out operators that no backend takes or computes."""
    linear_layers.keep_hooks_out(program)
    if not weight_only_linear:
        dequantize.spell_out(program)
    tanh_gelu.write_out(program, exact_gelu)


@contextmanager
def around() -> Iterator[None]:
    """A context in which graphs are traced and verified again, and constant parts of them are computed."""
    with sizes_of_splits.verified_as_symbols(), nonzero_rows.row_major(), constant_parts.computed_once():
        yield


def change_lowered(edge: EdgeProgramManager) -> None:
    """Makes ExecuTorch's operators of quantized embeddings."""
    dequantize.fuse_embeddings(edge)


def finish(edge: EdgeProgramManager) -> None:
    """Replaces norms that no backend has taken, and copies the old content of buffers."""
    norms.write_out(edge)
    old_buffers.copy(edge)
