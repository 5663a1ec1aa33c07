"""Guesses the inputs of a method: calls it with likely ones, and learns from the layer that refuses them."""

from __future__ import annotations

import heapq
import inspect
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etbuild.errors import printable

if TYPE_CHECKING:
    import torch

    Input = tuple[tuple[int, ...], str]  # shape and dtype
    Inputs = tuple[Input, ...]

_TRIES = 80
_SECONDS = 20.0  # no further call begins after so much time
_SIZES = {1: (128,), 2: (224, 64, 32, 28, 96), 3: (16, 64)}  # of one dimension, by the number of dimensions
_LARGEST = 2**24  # elements of an input
_LONGEST = 160  # of what a method says


@dataclass(frozen=True)
class Guess:
    """What calls of a method have shown.

    Attributes:
        inputs: Inputs with which it returns tensors; None if none of those that were tried do.
        said: What it said of the inputs with which it went furthest; empty if it said nothing.
    """

    inputs: Inputs | None
    said: str = ""


def inputs_of(root: torch.nn.Module, method: Callable[..., Any]) -> Guess:
    """Finds inputs with which a method or a child of a module returns tensors in eager PyTorch.

    Args:
        root: The module.
        method: A bound method of it, or a child.
    """
    import torch

    module = method if isinstance(method, torch.nn.Module) else root
    try:
        parameters = inspect.signature(method.forward if method is module else method).parameters.values()
    except (ValueError, TypeError):  # it has no signature
        return Guess(None)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in parameters)
    with torch.no_grad():
        return _searched(method, _Tries(_likely(module), count), _names(root))


def results(method: Callable[..., Any], inputs: Sequence[Input]) -> list[torch.Tensor]:
    """The tensors that a method returns for zeros."""
    import torch
    from torch.utils._pytree import tree_leaves

    made = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in inputs]
    return [each for each in tree_leaves(method(*made)) if isinstance(each, torch.Tensor)]


class _Tries:
    """What is tried next: changes of the inputs with which a method went furthest, then the others in their order."""

    def __init__(self, likely: Sequence[Input], count: int) -> None:
        same = [(each,) * count for each in likely]
        self._heap: list[tuple[int, int, Inputs]] = []
        self._progress: dict[Inputs, int] = {}
        self._order = itertools.count()
        for each in itertools.islice(itertools.chain(same, itertools.product(likely, repeat=count)), _TRIES):
            self.add(each, 0)

    def add(self, inputs: Inputs, progress: int) -> None:
        """Adds inputs, unless they are large: an error may name any number. `progress` says how far the method went
        with what they were made from."""
        largest = max((math.prod(shape) for shape, _ in inputs), default=0)
        if largest <= _LARGEST and self._progress.get(inputs, -1) < progress:
            self._progress[inputs] = progress
            heapq.heappush(self._heap, (-progress, next(self._order), inputs))

    def __iter__(self) -> Iterator[Inputs]:
        tried = set[object]()
        while self._heap:
            if (inputs := heapq.heappop(self._heap)[2]) not in tried:
                tried.add(inputs)
                yield inputs


def _searched(method: Callable[..., Any], tries: _Tries, names: dict[torch.nn.Module, str]) -> Guess:
    from torch.nn.modules.module import register_module_forward_hook

    furthest, said, begun = -1, "", time.monotonic()
    for inputs in itertools.islice(tries, _TRIES):
        done: list[object] = []
        hook = register_module_forward_hook(lambda *_, done=done: done.append(0))
        try:
            return Guess(inputs if results(method, inputs) else None, "" if done else said)
        except Exception as error:  # noqa: BLE001 - the user's code: any error says that the inputs do not fit
            layer = _refusing(error)
            if len(done) > furthest:
                furthest, said = len(done), _told(inputs, error, layer, names)
            for position, given in enumerate(inputs):
                for better in (*_taken_by(layer), *_with_said_sizes(given, str(error))):
                    tries.add((*inputs[:position], better, *inputs[position + 1 :]), len(done) + 1)
        finally:
            hook.remove()
        if time.monotonic() - begun > _SECONDS:
            break
    return Guess(None, said)


def _refusing(error: BaseException) -> torch.nn.Module | None:
    """The innermost module in whose `forward` an error was raised."""
    import torch

    found, traceback = None, error.__traceback__
    while traceback is not None:
        own = traceback.tb_frame.f_locals.get("self")
        found = own if isinstance(own, torch.nn.Module) else found
        traceback = traceback.tb_next
    return found


def _with_said_sizes(given: Input, said: str) -> Iterator[Input]:
    """An input with other sizes, if an error names one that it has: "(672x224 and 11x13)" may ask for 11 in place of
    224."""
    shape, dtype = given
    numbers = list(dict.fromkeys(map(int, re.findall(r"(?<![\w.])\d{1,6}(?=\D|$)|(?<=\dx)\d{1,6}", said))))[:8]
    for place, size in enumerate(shape):
        for other in numbers if size in numbers and size > 1 else ():
            if other not in (0, size):
                yield (*shape[:place], other, *shape[place + 1 :]), dtype


def _told(inputs: Inputs, error: Exception, layer: torch.nn.Module | None, names: dict[torch.nn.Module, str]) -> str:
    """What a method said of inputs, in one line."""
    text = printable(" ".join(str(error).split())) or type(error).__name__
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    place = f"in `{names[layer]}` ({type(layer).__name__}): " if layer is not None and names.get(layer) else ""
    return f"With {', '.join(f'{dtype}{[*shape]}' for shape, dtype in inputs) or 'no inputs'}, it says {place}{text}"


def _names(root: torch.nn.Module) -> dict[torch.nn.Module, str]:
    return {layer: name for name, layer in root.named_modules()}


def _likely(root: torch.nn.Module) -> list[Input]:
    """Inputs that a module is likely to take: those of its first layers, then common ones."""
    layers = [layer for layer in root.modules() if next(layer.children(), None) is None][:4]
    real = _real(root)
    common: list[Input] = [((1, 3, 224, 224), real), ((1, 16), real), ((1, 16), "int64"), ((1,), "int64"), ((), real)]
    return list(dict.fromkeys([*itertools.chain(*map(_taken_by, layers)), *common]))


def _real(root: torch.nn.Module) -> str:
    dtypes = (str(each.dtype).removeprefix("torch.") for each in root.parameters() if each.is_floating_point())
    return next(dtypes, "float32")


def _taken_by(layer: torch.nn.Module | None) -> list[Input]:
    """Inputs that a layer takes, by the sizes that it says it has."""

    def said(name: str) -> Any:
        found = getattr(layer, name, None)
        return found if isinstance(found, int) else None

    if layer is None:
        return []
    shapes: list[tuple[int, ...]] = []
    kernel, normalized = getattr(layer, "kernel_size", None), getattr(layer, "normalized_shape", None)
    if said("num_embeddings"):
        return [((1, 16), "int64"), ((1, 1), "int64"), ((1,), "int64"), ((), "int64")]
    if (channels := said("in_channels")) and isinstance(kernel, tuple):
        shapes = [(1, channels, *[size] * len(kernel)) for size in _SIZES.get(len(kernel), ())]
    elif features := said("in_features"):
        shapes = [(1, features), (1, 16, features)]
    elif size := said("input_size") or said("embed_dim") or said("d_model"):
        hidden = said("hidden_size")
        state = [(said("num_layers") or 1, 1, hidden), (1, hidden)] if hidden else []
        shapes = [(1, 16, size), (1, size), *state]
    elif isinstance(normalized, (tuple, list)):
        shapes = [(1, 16, *normalized), (1, *normalized)]
    elif channels := said("num_features") or said("num_channels"):
        shapes = [(1, channels), (1, channels, 28, 28), (1, channels, 128)]
    return [(shape, _real(layer)) for shape in shapes]
