"""Does the work that every build would do first, once before the process forks for each build.

The process must have only one thread when it forks: a lock that another thread holds would stay locked in the fork
forever. Operators run on one thread in every building process: see `surroundings.arithmetic`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from etbuild import plugins, switches, workarounds
from etbuild.guard.reads import guard
from etbuild.key import code, toolchain
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def warm(verb: str) -> None:
    """Imports what a command needs, and runs it on a tiny module. The second call does nothing.

    `reproduce` does not benefit, because it builds in separate processes.

    Args:
        verb: The name of the command.
    """
    if verb in ("plan", "report"):
        _import_step(verb)
    if verb in ("export", "lower", "compare", "build"):
        toolchain.check_installed()
        _warm_export()
    if verb in ("compare", "build"):
        _warm_comparison()
    if verb in ("lower", "build"):
        _warm_lowering()
    if verb == "build":
        code.remember()
    if verb in ("report", "build"):
        toolchain.toolchain()


@functools.cache
def _import_step(step: str) -> None:
    """Imports what a step needs for every program."""
    importlib.import_module(f"etbuild.steps.{step}")
    gc.collect()
    gc.freeze()


@functools.cache
def _warm_export() -> None:
    with _quiet_and_alone(), switches.on("saving"):
        import torch

        saved = io.BytesIO()
        torch.export.save(_tiny_program(), saved)
        torch.export.load(saved)
        guard()
        workarounds.of_export()
        for name in plugins.group("method_watch"):
            plugins.load("method_watch", name)


@functools.cache
def _warm_comparison() -> None:
    with _quiet_and_alone():
        import executorch.runtime  # noqa: F401

        plugin = plugins.group("step")["compare"]
        for file in plugin.directory.glob("[!_]*.py"):
            plugins.import_module(f"{plugin.package}.{file.stem}")


@functools.cache
def _warm_lowering() -> None:
    """Lowers a tiny program. The first lowering of a process takes longer, to fill caches."""
    with _quiet_and_alone(), switches.on("importing"):
        from etbuild.emit import emit_program  # noqa: F401
        from etbuild.files import program_file
        from etbuild.lower import lower_methods
        from etbuild.plan.step_plans import LowerPlan
        from etbuild.steps.one_by_one import one_by_one

        plan = LowerPlan.from_json(_TINY_PLAN)
        workarounds.of_emission()
        if (lowering := one_by_one()) is not None:
            lowering.import_all(lowers=True)
        with switches.lowering():
            lowered = lower_methods.lower_programs(plan, {"forward": _tiny_program()}, {}).to_executorch()
        program_file.read_program(lowered.buffer)


_TINY_PLAN: dict[str, object] = {
    **{key: {} for key in ("constant_methods", "custom_ops", "edge_compile", "executorch", "named_data", "passes")},
    "memory_planning": {"forward": {}},
    "methods": {"forward": {"from_recipe": False, "partitioners": [{"backend": "xnnpack", "options": {}}]}},
    "name": "tiny",
    "recipe": None,
    "share_mutable_buffers": False,
    "weights": [],
}
"""The plan of the tiny program. An action that lowers has no code that would make it from a manifest."""


def _tiny_program() -> ExportedProgram:
    import torch

    from etbuild.export import (
        archive,  # noqa: F401
        export_methods,  # noqa: F401
    )

    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    rows = torch.export.Dim("rows", min=2, max=8)  # the first size that varies needs modules of SymPy
    with torch.no_grad():
        return torch.export.export(module, (torch.zeros(4, 8),), dynamic_shapes=({0: rows - 1},))


@contextmanager
def _quiet_and_alone() -> Iterator[None]:
    """Runs code without messages and without new threads. Objects that it makes stay as long as the process. The
    garbage collector ignores them, so it never writes to memory that the forks share."""
    with library_messages_off(), stdout_for_results():
        import torch
        from tqdm import tqdm  # type: ignore[import-untyped]

        interval = tqdm.monitor_interval
        tqdm.monitor_interval = 0  # otherwise the first progress bar starts a thread that watches all bars
        state = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(state)
            tqdm.monitor_interval = interval
    gc.collect()
    gc.freeze()
