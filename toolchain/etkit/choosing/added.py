"""Adds variants to the text of a manifest. Everything else in it, such as comments, stays as it is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etbuild.manifest import validate, yaml_document
from etbuild.publishing import artifacts
from etkit.choosing.shown import entry
from etkit.choosing.trials import Trial


def add(path: Path, trials: Sequence[Trial]) -> list[str]:
    """Writes the best schemes into a manifest, as variants.

    Args:
        path: The manifest.
        trials: The trials.

    Returns:
        The names of the new variants. Those that the manifest has already stay as they are.

    Raises:
        InputError: The text cannot be changed without changing more of it.
        BuildError: The file cannot be written.
    """
    document = yaml_document.load(path)
    present: Any = document.data.get("variants", {})
    new = {
        each.scheme.name: each.scheme.patch
        for each in trials
        if each.is_best and each.scheme.patch and each.scheme.name not in present
    }
    if not new:
        return []
    content = path.read_bytes()
    written = [entry(*each) for each in new.items()]
    lines = content.decode("utf-8").splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    if "variants" in document.data:
        key = document.keys[("variants",)]
        first = document.keys.get(("variants", next(iter(present), "")))
        if first is None or first.line == key.line:
            raise _cannot(path)
        lines[key.line : key.line] = [" " * (first.column - 1) + each + end for each in written]
    else:
        lines += ["variants:" + end, *(f"  {each}{end}" for each in written)]
    _check(path, "".join(lines), document, new)
    artifacts.replace(path.resolve(), "".join(lines).encode())
    return [*new]


def _check(path: Path, text: str, before: yaml_document.Document, new: dict[str, dict[str, Any]]) -> None:
    """Checks that a new text says the same as the old one, with new variants."""
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch, "manifest.yaml")
        written.write_bytes(text.encode())
        try:
            validate.load_each(written)
            after = yaml_document.load(written).data
        except InputError:
            raise _cannot(path) from None
    added: Any = after.get("variants", {})
    variants = {name: each for name, each in added.items() if name not in new}
    if _typed({name: added.get(name) for name in new}) != _typed(new):
        raise _cannot(path)
    same = {key: each for key, each in after.items() if key != "variants"}
    if {**same, **({"variants": variants} if "variants" in before.data else {})} != before.data:
        raise _cannot(path)


def _typed(data: Any) -> str:
    """A text that tells 1, 1.0 and true apart."""
    return json.dumps(data, sort_keys=True, default=repr)


def _cannot(path: Path) -> InputError:
    return InputError.of(f"{path}: its text leaves no place for variants", "copy the lines above into it")
