"""Watches the export of a method. This is the interface that the core uses."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

from torch.export import ExportedProgram

from etbuild.export.assignments import EagerMethod, MethodWatch
from etbuild.inputs.user_code import active_finder, wrap_user_error
from etplugins.assignments import assigned, assigning_lines, small_sizes


class _Watch:
    """Implements `MethodWatch`, which describes the methods."""

    def traced(self, method: EagerMethod, trace: Callable[[], ExportedProgram]) -> ExportedProgram:
        sources, module, path = active_finder().loaded_modules(), method.module, method.path
        with assigned.watched(module, sources) as found:
            program = trace()
        if found.wants_run(program):
            arguments, keywords = assigned.other_inputs(method.inputs)
            with wrap_user_error(path, f"running `{method.entry}` on the example inputs"):
                in_run = assigned.assigned_when_run(module, lambda: method.root(*arguments, **keywords), sources)
                found.add(in_run)
        elif found.attributes:  # a run may assign less; if the model refuses to run, the export continues
            arguments, keywords = copy.deepcopy(method.inputs)
            with contextlib.suppress(Exception):
                found.add(assigned.assigned_when_run(module, lambda: method.root(*arguments, **keywords), sources))
        found.check(program, path)
        differ = functools.partial(assigned.calls_differ, module, method.root, program, method.inputs, sources)
        found.check_calls(differ, path, method.is_only, assigning_lines.hint)
        return program

    def differing_sizes(self, method: EagerMethod, program: ExportedProgram, dims: list[Any]) -> str | None:
        sources = active_finder().loaded_modules()
        return small_sizes.difference(method.module, method.root, program, method.inputs, dims, sources)


WATCH: MethodWatch = _Watch()
