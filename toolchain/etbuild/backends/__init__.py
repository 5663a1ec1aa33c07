"""The backends by name. A backend checks its options without torch, and makes its partitioner with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from etbuild import schema
from etbuild.backends import custom, xnnpack
from etbuild.errors import DocumentPath, Problem, did_you_mean


@dataclass(frozen=True)
class Backend:
    """One backend.

    Attributes:
        name: Its name in a manifest; `backend-NAME.schema.json` describes its options.
        create: Makes ExecuTorch's `Partitioner` from the options; its second argument loads a `module:callable` of the
            declared sources. None: nothing is delegated, all runs on ExecuTorch's portable operators.
        separable: Lowering methods one by one and merging them gives what lowering them together gives: the backend
            inherits ExecuTorch's `preprocess_multimethod`, a loop over the methods.
    """

    name: str
    create: Callable[[dict[str, Any], Callable[[str], Any]], Any] | None
    separable: bool

    def check(self, options: dict[str, Any], path: DocumentPath) -> list[Problem]:
        """What is wrong with the options that stand at `path`."""
        return schema.problems(f"backend-{self.name}", options, path)


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("custom", custom.create, separable=False),  # what it looks at no one knows
        Backend("portable", None, separable=True),
        Backend("xnnpack", xnnpack.create, separable=True),
    )
}


def separable(names: Iterable[str]) -> bool:
    """Whether methods that are lowered by these backends can be lowered one by one."""
    return all(BACKENDS[name].separable for name in names)


def check(name: str, options: dict[str, Any], path: DocumentPath) -> list[Problem]:
    """What is wrong with a partitioner entry of a manifest that stands at `path`."""
    backend = BACKENDS.get(name)
    if backend is None:
        return [Problem(f"unknown backend `{name}`", path, did_you_mean(name, BACKENDS))]
    return backend.check(options, (*path, "options"))
