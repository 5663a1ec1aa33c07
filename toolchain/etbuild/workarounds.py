"""Works around limits of ExecuTorch and PyTorch at several places of a build.

A plug-in provides an object or module for each place, in the group `workaround`. Without a plug-in, an object of one of
these classes takes its place, and the build uses ExecuTorch without changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from etbuild import plugins
from etbuild.errors import DocumentPath

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node
    from torch.fx.passes.infra.pass_base import PassResult

GROUP = "workaround"

Plan = Callable[..., list[int]]
"""An algorithm that plans memory, in ExecuTorch's form."""


class OfExport:
    """Changes methods after their export."""

    def make_lowerable(self, program: ExportedProgram, path: DocumentPath) -> None:
        """Changes an exported method in place: replaces parts that the edge dialect cannot have. `path` is the
        method's place in the manifest."""


class OfLowering:
    """Changes methods before and after backends get them."""

    def change_exported(
        self, program: ExportedProgram, *, exact_gelu: Collection[str], weight_only_linear: bool
    ) -> None:
        """Changes an exported method in place, before its backends get it.

        Args:
            program: The method.
            exact_gelu: The dtypes in which its backends compute the exact form of GELU in place of the tanh form.
            weight_only_linear: Whether one of its backends takes linear layers with weights that torchao quantized.
        """

    def around(self) -> AbstractContextManager[None]:
        """A context in which methods are lowered."""
        return nullcontext()

    def change_lowered(self, edge: EdgeProgramManager) -> None:
        """Changes the parts of methods that no backend took, in place, before the passes of the manifest."""

    def finish(self, edge: EdgeProgramManager) -> None:
        """Changes lowered methods in place, after the passes of the manifest."""


class OfEmission:
    """Changes lowered methods when they are emitted."""

    def passes(
        self, shard_of: Callable[[Node], str | None] | None, *, outputs: bool
    ) -> list[Callable[[GraphModule], PassResult]]:
        """The last passes of `to_executorch` before memory is planned.

        Args:
            shard_of: Returns the shard of a placeholder, or None if it is not named data. None: nothing is named data.
            outputs: Whether the application may provide the memory for the results of methods.
        """
        return []

    def size_bounds(self) -> tuple[Callable[[GraphModule], PassResult], Callable[[Plan], Plan]]:
        """A pass that gives dynamic sizes their largest values, and what makes an algorithm plan memory for them."""
        from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass

        return ConstraintBasedSymShapeEvalPass(), lambda algorithm: algorithm

    def around(self, edge: EdgeProgramManager) -> AbstractContextManager[None]:
        """A context in which methods are emitted."""
        return nullcontext()

    def check(self, method: str, graph_module: GraphModule) -> None:
        """Checks a method with its memory plan. Raises a BuildError if something is overwritten while it is needed."""


class OfBackend:
    """Changes the work of a backend."""

    def around(self, partitioners: Mapping[str, Sequence[Any]]) -> AbstractContextManager[None]:
        """A context in which the backend lowers parts of methods. It gets the partitioners of each method."""
        return nullcontext()


_Place = TypeVar("_Place")


def _provided(name: str, nothing: type[_Place]) -> _Place:
    provided: _Place = plugins.load(GROUP, name) if name in plugins.group(GROUP) else nothing()
    return provided


def of_export() -> OfExport:
    """The object that changes methods after their export."""
    return _provided("export", OfExport)


def of_lowering() -> OfLowering:
    """The object that changes methods before and after backends get them."""
    return _provided("lowering", OfLowering)


def of_emission() -> OfEmission:
    """The object that changes methods when they are emitted."""
    return _provided("emission", OfEmission)


def of_backend(name: str) -> OfBackend:
    """The object that changes the backend with this name."""
    return _provided(name, OfBackend)
