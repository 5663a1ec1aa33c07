"""Imports the parts of ExecuTorch for lowering, before a process forks for it, or while another one exports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from etbuild import switches, workarounds
from etbuild.processes.import_without_gc import import_without_gc
from etbuild.steps.lowering_options import LoweringOptions
from etbuild.steps.one_by_one import one_by_one
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results


def imports_of_executorch(options: LoweringOptions, *, lowers: bool = True) -> list[Callable[[], None]]:
    """Functions that import the parts of ExecuTorch for lowering, one after the other.

    Args:
        options: How lowering runs.
        lowers: Whether methods are lowered. If not, lowered ones become a program, which needs much less.
    """

    def decompositions() -> None:  # otherwise ExecuTorch imports it in the process of each method
        import torch._functorch.aot_autograd  # noqa: F401

    def exir() -> None:
        from executorch.exir import EdgeProgramManager  # noqa: F401
        from torch.export.pt2_archive import _package  # noqa: F401

    def driver() -> None:
        from etbuild.emit.emit_methods import emit_methods  # noqa: F401
        from etbuild.lower.lower_methods import lower_programs  # noqa: F401

        workarounds.of_lowering()
        workarounds.of_emission()

    def writer() -> None:
        from executorch.exir.emit import _emitter  # noqa: F401 - for constant methods

        from etbuild.emit.emit_program import write_program  # noqa: F401
        from etbuild.lower import runtime_kernels

        runtime_kernels.listed()
        if (plugin := one_by_one()) is not None:
            plugin.import_all(lowers=lowers)

    occasion: switches.Occasion = "importing" if lowers else "importing_without_lowering"

    def importer(part: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            faster = switches.on(occasion) if options.accelerate else nullcontext()
            with library_messages_off(), stdout_for_results(), import_without_gc("executorch.exir"), faster:
                part()

        return run

    return [importer(part) for part in ([exir, decompositions, driver] if lowers else []) + [writer]]
