"""The parts of a method that compute in float32, because the manifest keeps them so."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import torch

from etbuild.errors import InputError, Problem, did_you_mean
from etplugins.precision.parts import Keep

_PATH = ("model", "dtype", "keep")


class Kept:
    """Says which operators compute in float32.

    Args:
        keep: The parts that the manifest keeps.

    Attributes:
        found: The modules and layers of the manifest that some operator belongs to.
    """

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self.found: set[str] = set()

    def __call__(self, node: torch.fx.Node) -> bool:
        """Whether an operator belongs to a kept part."""
        stack = [(re.sub(r"@\d+$", "", path), kind) for path, kind in (node.meta.get("nn_module_stack") or {}).values()]
        paths = [path for path, _ in stack]
        path, kind = stack[-1] if stack else ("", "")
        name = kind if isinstance(kind, str) else kind.__name__
        target = str(node.target).removeprefix("aten.").partition(".")[0]
        words = [_plain(target), *([_plain(name.rpartition(".")[2])] if path else [])]  # the root is no layer
        modules = {pattern for pattern in self._keep.modules if any(fnmatchcase(path, pattern) for path in paths)}
        layers = {kind for kind in self._keep.layers if (word := _plain(kind)) and any(word in each for each in words)}
        self.found |= modules | layers
        return bool(modules or layers)

    def check(self, module: torch.nn.Module) -> None:
        """Checks that each kept part exists. Raises InputError."""
        names = [name for name, _ in module.named_modules() if name]
        classes = sorted({type(child).__name__ for child in module.modules()})
        problems = [
            Problem(f"no operator belongs to `{each}`", (*_PATH, key, index), did_you_mean(each, known))
            for key, given, known in (("modules", self._keep.modules, names), ("layers", self._keep.layers, classes))
            for index, each in enumerate(given)
            if each not in self.found
        ]
        InputError.raise_if(problems)


def _plain(words: str) -> str:
    return re.sub(r"[\W_]", "", words).lower()
