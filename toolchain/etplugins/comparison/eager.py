"""The model in eager PyTorch, as its user calls it. A program is compared with it, and with its exported methods."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from etplugins.comparison.graph import arguments, copied, outputs_of

_Call = tuple[str, torch.nn.Module, list[torch.Tensor]]


@dataclass(frozen=True)
class EagerMethod:
    """A method of the model.

    Attributes:
        root: The whole model, in `eval()` mode. Calls change its state, also attributes that are no buffers.
        entry: The called function, as a path of attributes, such as `forward` or `decoder.step`.
        applied: Makes a context in which the model computes with the adapter of the method.
    """

    root: torch.nn.Module
    entry: str
    applied: Callable[[], AbstractContextManager[object]]

    def call(self, spec: TreeSpec, leaves: Sequence[Any]) -> list[Any]:
        """Calls the method. Any exception may come from its code.

        Args:
            spec: How the inputs belong together.
            leaves: The inputs, in the order of the exported method.

        Returns:
            The outputs, in the order of the program's.
        """
        positional, keywords = arguments(spec, [*map(copied, leaves)])
        # A call of the model itself runs its hooks.
        called = self.root if self.entry == "forward" else operator.attrgetter(self.entry)(self.root)
        with torch.no_grad(), self.applied():
            return outputs_of(called(*positional, **keywords))

    def different_module(self, spec: TreeSpec, graph: GraphModule, leaves: Sequence[Any]) -> str | None:
        """Calls the method, and finds the first submodule that the exported graph computes differently.

        Args:
            spec: How the inputs belong together.
            graph: The exported method as a module, with its state.
            leaves: The inputs.

        Returns:
            The name and the class of the first submodule with an output that no node computes; None if there is none.
        """
        run = Interpreter(graph, garbage_collect_values=False)
        with torch.no_grad():
            run.run(*map(copied, leaves), enable_io_processing=False)
        computed = [each for each in run.env.values() if isinstance(each, torch.Tensor)]
        with _outputs_of_modules(self.root) as calls:
            self.call(spec, leaves)
        for name, module, outputs in calls:
            if not all(any(_alike(output, each) for each in computed) for output in outputs):
                return f"`{name}` ({type(module).__name__})"
        return None


@contextmanager
def _outputs_of_modules(root: torch.nn.Module) -> Iterator[list[_Call]]:
    """Yields a list that gets the outputs of each submodule whose call ends, with its name."""
    calls: list[_Call] = []

    def noted(name: str) -> Any:
        def hook(module: torch.nn.Module, _: Any, result: Any) -> None:
            tensors = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
            calls.append((name, module, [each.clone() for each in tensors if not each.is_nested]))

        return hook

    hooks = [child.register_forward_hook(noted(name)) for name, child in root.named_modules() if name]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.allclose(one, other, rtol=1e-2, atol=1e-3, equal_nan=True))
