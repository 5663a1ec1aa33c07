"""The backends by name. A backend checks its options without torch, and makes its partitioner with it."""

from __future__ import annotations

from collections.abc import Callable
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
    """

    name: str
    create: Callable[[dict[str, Any], Callable[[str], Any]], Any] | None

    def check(self, options: dict[str, Any], path: DocumentPath) -> list[Problem]:
        """What is wrong with the options that stand at `path`."""
        return schema.problems(f"backend-{self.name}", options, path)


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("custom", custom.create),
        Backend("portable", None),
        Backend("xnnpack", xnnpack.create),
    )
}


def check(name: str, options: dict[str, Any], path: DocumentPath) -> list[Problem]:
    """What is wrong with a partitioner entry of a manifest that stands at `path`."""
    backend = BACKENDS.get(name)
    if backend is None:
        return [Problem(f"unknown backend `{name}`", path, did_you_mean(name, BACKENDS))]
    return backend.check(options, (*path, "options"))
