"""The switches that are on for each occasion: see `etbuild.switches`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from etbuild import releases
from etbuild.switches import Notes

# In the order in which they are entered. The modules import torch, so each is imported only when it is used.
SWITCHES = (
    "compile_on_demand",
    "partition_without_printing",
    "share_provenance",
    "replay_once",
    "match_where_possible",
    "sort_in_place",
    "share_weights",
    "compute_values_once",
    "decompose_if_needed",
    "merge_by_sets",
    "read_hints_once",
    "cache_quantization",
    "map_trees_in_one_walk",
    "check_once",
    "skip_idle_passes",
    "convert_without_printing",
    "write_hints_once",
    "describe_lines_once",
    "serialize_plainly",
    "describe_tensors_once",
    "bind_symbols_if_any",
    "trace_if_asked",
    "trace_calls_once",
)
"""The switches of lowering without arguments."""


@contextlib.contextmanager
def lowering(directory: Path | None = None, jobs: int = 1, notes: Notes | None = None) -> Iterator[None]:
    """Returns a context manager in which this process lowers faster. On exit, all replaced functions are restored.

    The arguments are those of `etbuild.switches.lowering`.
    """
    if not releases.fitting():
        yield
        return
    with contextlib.ExitStack() as switches:
        switches.enter_context(entered(SWITCHES))
        if directory is not None:
            from etplugins.accelerate.blobs_in_files import blobs_in_files  # a comparison needs no XNNPACK

            directory.mkdir(exist_ok=True)
            switches.enter_context(blobs_in_files(directory))
        if jobs > 1:
            from etplugins.accelerate.preprocess_in_parallel import preprocess_in_parallel

            switches.enter_context(preprocess_in_parallel(jobs, notes))
        yield


def exporting() -> AbstractContextManager[None]:
    """Returns a context manager in which `torch.export.export` is faster."""
    tracing = ["describe_lines_once", "describe_tensors_once", "bind_symbols_if_any", "map_trees_in_one_walk"]
    return entered(["compile_on_demand", "cache_quantization", *tracing, "trace_if_asked"])


def saving() -> AbstractContextManager[None]:
    """Returns a context manager in which `torch.export.save` is faster."""
    return entered(["save_without_canonical_form", "save_without_printing", "serialize_plainly"])


def loading() -> AbstractContextManager[None]:
    """Returns a context manager in which `torch.export.load` is faster."""
    return entered(["import_lowering_later", "compile_on_demand", "share_provenance", "read_hints_once"])


def quantizing() -> AbstractContextManager[None]:
    """Returns a context manager in which methods are quantized faster."""
    return entered(["annotate_where_possible"])


def importing() -> AbstractContextManager[None]:
    """Returns a context manager in which ExecuTorch is imported faster."""
    return entered(["import_inductor_later"])


def importing_without_lowering() -> AbstractContextManager[None]:
    """Returns a context manager in which the parts of ExecuTorch that write a program are imported without the rest."""
    return entered(["import_lowering_later"])


@contextlib.contextmanager
def entered(names: Sequence[str]) -> Iterator[None]:
    """Turns switches on by their names, in this order. All stay off if the installed versions do not fit."""
    with contextlib.ExitStack() as switches:
        if names and releases.fitting():
            for name in names:
                switches.enter_context(getattr(importlib.import_module(f"{__package__}.{name}"), name)())
        yield
