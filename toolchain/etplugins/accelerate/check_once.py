"""Checks a delegate's program again only if something has changed.

XNNPACK runs each of 17 passes on a delegate by a pass manager of its own, which checks the program before and after
the pass. So each program is checked twice, and also after the passes that changed nothing. A program that has passed
the check passes it again if its nodes, its signature, its tensors and its verifier are the same.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.pass_manager import ExportedProgramPassManager
from torch.export import ExportedProgram
from torch.fx import GraphModule

from etbuild.patching import replaced
from etplugins.accelerate.replay_once import content, same


@contextlib.contextmanager
def _within_a_delegate() -> Iterator[None]:
    check = ExportedProgramPassManager.check
    checked: weakref.WeakKeyDictionary[GraphModule, list[tuple[Any, ...]]] = weakref.WeakKeyDictionary()

    def check_changed(self: ExportedProgramPassManager, program: ExportedProgram) -> None:
        module, now = program.graph_module, _looked_at(program)
        if module in checked and same(checked[module], now):
            return
        check(self, program)
        if not [*module.children()]:  # these have their own content
            checked[module] = now

    with replaced(ExportedProgramPassManager, "check", check_changed):
        yield


def _looked_at(program: ExportedProgram) -> list[tuple[Any, ...]]:
    """What a check looks at. Signatures are made anew by each pass, and changed in place by some."""
    signature = program.graph_signature
    specs: Any = [*signature.input_specs, *signature.output_specs]
    return [
        *content(program.graph_module),
        *((spec.kind, type(spec.arg), spec.arg.name, getattr(spec.arg, "value", None), spec.target) for spec in specs),
        tuple(spec.persistent for spec in signature.input_specs),
        *program.state_dict.items(),
        *program.constants.items(),
        (*program.verifiers, *program.module_call_graph),
    ]


@contextlib.contextmanager
def check_once() -> Iterator[None]:
    """Returns a context manager in which the programs of XNNPACK's delegates are checked when they have changed."""
    preprocess = XnnpackBackend.preprocess

    def preprocess_with_fewer_checks(*arguments: Any) -> Any:
        with _within_a_delegate():
            return preprocess(*arguments)

    with replaced(XnnpackBackend, "preprocess", staticmethod(preprocess_with_fewer_checks)):
        yield
