"""Collects the cases of ExecuTorch's own `test_to_backend_multi_method.py` from the installed package.

Each case is a function that defines modules, exports them, and makes partitioners for them. Here the functions run with
replacements of `export` and `to_edge` that keep the module, up to the point where ExecuTorch would lower. So the
modules, the partitioners and the expected payloads are ExecuTorch's. Projects of these tests have this file as a
source.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.backend.test import test_to_backend_multi_method as theirs

_ROOT = "part_"  # a module for several methods has the module of each method under this prefix and the method's name


@dataclass(frozen=True)
class Case:
    """A method of a case: its module, its partitioner, and the expected content of its delegates, if the case has
    it."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    partitioner: Any
    payloads: list[str] | None


@dataclass(frozen=True)
class _Kept:
    module: torch.nn.Module
    inputs: tuple[Any, ...]

    def exported_program(self) -> "_Kept":
        return self


class _Collected(Exception):
    pass


def names() -> list[str]:
    """Returns the names of all cases in the file."""
    prefix = "test_multi_method_"
    cases = vars(theirs.TestToBackendMultiMethod)
    return [name.removeprefix(prefix) for name in cases if name.startswith(prefix)]


def collect(case: str) -> dict[str, Case]:
    """Returns the methods of a case."""
    found: dict[str, Case] = {}

    class Collecting(theirs.TestToBackendMultiMethod):
        def _test(self, test_set: Any) -> None:
            found.update({name: Case(*vars(kept).values(), *rest) for name, (kept, *rest) in test_set.items()})
            raise _Collected

    def to_backend(spec: Any) -> None:
        for name, kept in spec.method_to_edge_program.items():
            found[name] = Case(kept.module, kept.inputs, spec.method_to_partitioner[name], None)
        raise _Collected

    with _in_place_of_theirs(to_backend), contextlib.suppress(_Collected):
        getattr(Collecting(), f"test_multi_method_{case}")()
    return found


@contextlib.contextmanager
def _in_place_of_theirs(to_backend: Any) -> Any:
    originals = torch.export.export, theirs.to_edge, theirs.to_backend
    torch.export.export, theirs.to_edge, theirs.to_backend = _Kept, lambda kept: kept, to_backend
    try:
        yield
    finally:
        torch.export.export, theirs.to_edge, theirs.to_backend = originals


def entry(case: str, method: str) -> str:
    """Returns the path to a method in the result of `create`, for the manifest."""
    return "forward" if len(collect(case)) == 1 else _ROOT + method


def create(case: str) -> torch.nn.Module:
    """The factory. Returns the only module of a case, or a module that contains all of them."""
    methods = collect(case)
    if len(methods) == 1:
        return next(iter(methods.values())).module
    return torch.nn.ModuleDict({_ROOT + name: each.module for name, each in methods.items()})


def partitioner(case: str, method: str) -> Any:
    """The factory of a method's partitioner."""
    return collect(case)[method].partitioner
