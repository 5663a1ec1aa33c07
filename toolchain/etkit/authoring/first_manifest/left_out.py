"""Says which inputs of a class a first manifest leaves out, though its tokenizer or its other processors give them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from etkit.authoring.first_manifest import known_inputs
from etkit.authoring.first_manifest.first import First
from etkit.authoring.first_manifest.known_inputs import Input
from etplugins.transformers.class_inputs import ClassInputs
from etplugins.transformers.tasks import TASKS

if TYPE_CHECKING:
    import torch

_NAMED = re.compile(r"    (\w+): \{")  # an input of `example_kwargs`
_KINDS = {
    "video": ("videos", ("video",)),
    "image": ("images", ("pixel", "image")),
    "audio": ("sounds", ("audio", "input_features", "input_values")),
    "text": ("texts", ("input_ids", "token")),
}
"""What a class may read, as transformers says: its plural, and parts of the names of such inputs. The first fits."""
_OF_TASK = {"image-text-to-text": ("input_ids", "pixel_values"), "image-to-text": ("pixel_values",)}


def names(first: First, inputs: ClassInputs) -> list[str]:
    """The names of the inputs that a manifest leaves out. None for a task whose methods take several.

    Args:
        first: What the manifest says.
        inputs: The inputs of the class.
    """
    if any(task.parts for task in _tasks(first)):
        return []
    taken = _taken(first, inputs)
    left = [each for each in inputs.given if known_inputs.is_data(each) and each not in taken]
    kinds = {_kind(each) for each in taken}
    several = len(kinds) > 1  # a task that takes an image with its text computes the places of both by itself
    return [each for each in left if not (several and _kind(each) in (*kinds, None))]


def remarks(left: Sequence[str], first: First, inputs: ClassInputs) -> Iterator[str]:
    """Remarks about inputs that are left out, and about images, sounds and videos.

    Args:
        left: The names of the inputs.
        first: What the manifest says.
        inputs: The inputs of the class.
    """
    kinds = {_kind(each) for each in _taken(first, inputs)}
    read = {_kind(each) for each in inputs.names}
    others = [kind for kind in _KINDS if kind in inputs.kinds and kind in read and kind not in kinds]
    others = [] if any(task.parts for task in _tasks(first)) else others
    of_others = [each for each in left if _kind(each) not in (*kinds, None)]
    if others or of_others:
        said = " and ".join(_KINDS[kind][0] for kind in _KINDS if kind in {*others, *map(_kind, of_others)})
        listed = f": {_listed(of_others)} left out" if of_others else ""
        yield f"The model also reads {said}, and this program does not{listed}."
    beside = [each for each in left if each not in of_others]
    if beside:
        yield (
            f"The processors of the model also give {', '.join(f'`{each}`' for each in beside)}, and this program does "
            "not take it: it computes what the class computes without it. If your inputs need it, as pairs of texts "
            "may, name all inputs in `example_kwargs`."
        )


def that_matter(module: Any, left: Sequence[str], known: dict[str, Input]) -> list[str]:
    """The inputs that change a result, or that cannot be tried.

    Args:
        module: The model, with any weights. Its `forward` takes tokens by the name `input_ids`.
        left: The names of inputs that it may take too.
        known: The inputs whose shape is known, by name.
    """
    return [name for name in left if name not in known or _changes(module, name, known[name], known["input_ids"])]


def _changes(module: Any, name: str, given: Input, tokens: Input) -> bool:
    """Whether a module computes something else of another value of an input. True if it does not take zeros."""
    import torch

    ids = torch.zeros(tokens.sizes, dtype=torch.int64)

    def results(value: torch.Tensor) -> list[torch.Tensor]:
        found = module(input_ids=ids, **{name: value})
        return [each for each in torch.utils._pytree.tree_leaves(found) if isinstance(each, torch.Tensor)]

    zeros = torch.zeros(given.sizes, dtype=getattr(torch, given.dtype))
    with torch.no_grad():
        try:
            first = results(zeros)
        except Exception:  # noqa: BLE001 - other inputs may be missing
            return True
        try:
            other = results(torch.ones_like(zeros))
        except Exception:  # noqa: BLE001 - such as an index of a table with one row
            return False
    return any(not torch.equal(one, two) for one, two in zip(first, other, strict=True))


def _taken(first: First, inputs: ClassInputs) -> set[str]:
    """The names of the inputs that a manifest takes."""
    named = [found[1] for line in first.methods if (found := _NAMED.match(line))]
    named += [each for task in first_tasks(first) for each in _OF_TASK.get(task, ())]
    return {inputs.main, *named, *(["decoder_input_ids"] if any(task.has_encoder for task in _tasks(first)) else [])}


def first_tasks(first: First) -> list[str]:
    """The task that a manifest names; empty without one."""
    return [line.removeprefix("  task: ") for line in first.model if line.startswith("  task: ")]


def _tasks(first: First) -> list[Any]:
    return [TASKS[name] for name in first_tasks(first)]


def _kind(name: str) -> str | None:
    """What an input holds, as its name says; None if it does not say it."""
    return next((kind for kind, (_, parts) in _KINDS.items() if any(part in name for part in parts)), None)


def _listed(found: Sequence[str]) -> str:
    shown = ", ".join(f"`{each}`" for each in found)
    return f"{shown} {'is' if len(found) == 1 else 'are'}"
