"""Writes the complex numbers of a method as pairs of real ones, and Fourier transforms as products of matrices.

Each operator that reads or makes complex tensors is traced with PyTorch's `ComplexTensor`, which computes with a real
and an imaginary part. The traced operators take its place. A complex result of the method becomes a pair, as
`torch.view_as_real` makes it.

Limit: `complex`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from etbuild import notes
from etbuild.errors import BuildError, DocumentPath
from etbuild.exception_text import hints, summary
from etbuild.export.written_buffers import memory_of, written_nodes
from etbuild.foreign_errors import PASSING
from etbuild.inputs import source_lines
from etbuild.inputs.user_code import active_finder

if TYPE_CHECKING:
    from etplugins.upstream.fourier import Transforms

_aten = torch.ops.aten
_INSTEAD = "compute with real and imaginary parts, or with cos and sin"
_DETACH = _aten.detach_.default
_DROPPED = (_aten._assert_tensor_metadata.default, _aten._assert_tensor_metadata)
_SPECTRA = ("aten::stft", "aten::istft", "aten::fft_", "aten::_fft_")
"""The beginnings of the names of operators that may compute with complex numbers inside."""


def write_out(program: ExportedProgram, path: DocumentPath) -> None:
    """Writes complex numbers and Fourier transforms in real numbers.

    Args:
        program: The method. It is changed in place.
        path: The place of the method in the manifest, for messages.

    Raises:
        BuildError: An operator has no form in real numbers, or an input or a weight is complex.
    """
    if not any(map(_is_concerned, program.graph.nodes)):
        return
    if _writes_complex(program):
        vars(program).update(vars(program.run_decompositions({})))  # views and writes become plain operators
    with torch.no_grad():
        _Rewriting(program, path).run()


def _is_complex(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_complex, value))
    return isinstance(value, torch.Tensor) and value.is_complex()


def _is_concerned(node: Node) -> bool:
    """Whether a node makes or reads complex numbers, or may compute with them inside."""
    if node.op == "placeholder" and not node.users:
        return False
    name = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""
    return (
        _is_complex(node.meta.get("val"))
        or any(_is_complex(each.meta.get("val")) for each in node.all_input_nodes)
        or name.startswith(_SPECTRA)
    )


def _writes_complex(program: ExportedProgram) -> bool:
    """Whether an operator writes to the memory of a complex tensor, also by a view of its real numbers."""
    complex_memories = {memory_of(node) for node in program.graph.nodes if _is_complex(node.meta.get("val"))} - {None}
    return any(memory_of(node) in complex_memories for node in written_nodes(program) if not _only_detached(node))


def _only_detached(node: Node) -> bool:
    """Whether all that may write to a node is `detach_`, which torch.export puts after a constant."""
    writers = [user for user in node.users if getattr(getattr(user.target, "_schema", None), "is_mutable", False)]
    return all(user.target is _DETACH for user in writers)


class _Rewriting:
    """Replaces the complex numbers of one method.

    Args:
        program: The method.
        path: Its place in the manifest.
    """

    def __init__(self, program: ExportedProgram, path: DocumentPath) -> None:
        from etplugins.upstream.fourier import Transforms

        self._program, self._graph, self._path = program, program.graph, path
        values = [node.meta.get("val") for node in self._graph.nodes]
        self._fake = detect_fake_mode([each for each in values if isinstance(each, torch.Tensor)])
        self._pairs: dict[Node, Any] = {}
        self._constants: dict[str, tuple[Node, torch.Tensor]] = {}
        self._transforms: Transforms = Transforms(self._constant)

    def run(self) -> None:
        """Replaces all complex numbers."""
        replaced = []
        specs = {spec.arg.name: spec for spec in self._program.graph_signature.input_specs}
        for node in [node for node in self._graph.nodes if _is_concerned(node)]:
            if node.op == "output":
                self._return_pairs(node)
                continue
            if isinstance(node.meta.get("val"), int | torch.SymInt):  # a size
                for each in [each for each in node.all_input_nodes if each in self._pairs]:
                    node.replace_input_with(each, self._pairs[each][0])
                continue
            if node.op == "placeholder":
                self._pairs[node] = self._of_placeholder(node, specs[node.name])
            elif node.target is _DETACH and node.args[0] in self._pairs:
                self._pairs[node] = self._pairs[node.args[0]]
            elif node.target is operator.getitem and node.args[0] in self._pairs:
                self._give(node, self._pairs[node.args[0]][node.args[1]])
            elif node.target not in _DROPPED:
                self._give(node, self._written(node))
            replaced.append(node)
        for node in reversed(replaced):
            self._erase(node)
        self._graph.eliminate_dead_code()
        self._graph.lint()
        self._program.graph_module.recompile()
        self._note()

    def _give(self, node: Node, result: Any) -> None:
        """Notes the pair in place of a node, or gives its real result to its users."""
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.is_complex() is isinstance(result, Node):
            raise self._error(node, None)  # such as a view of the same memory with another dtype
        if isinstance(result, Node):
            node.replace_all_uses_with(result)
            self._program.graph_signature.replace_all_uses(node.name, result.name)
        else:
            self._pairs[node] = result

    def _return_pairs(self, node: Node) -> None:
        for result in [each for each in node.all_input_nodes if each in self._pairs]:
            with self._graph.inserting_before(node):
                [pair] = self._traced(_aten.view_as_real.default, (result,), {}, result)
            node.replace_input_with(result, pair)
            self._program.graph_signature.replace_all_uses(result.name, pair.name)

    def _erase(self, node: Node) -> None:
        if node.op == "placeholder":
            specs = self._program.graph_signature.input_specs
            [spec] = [spec for spec in specs if spec.arg.name == node.name]
            specs.remove(spec)
            others = [each.target for each in specs]
            if spec.target not in others:
                self._program.constants.pop(spec.target, None)
        self._graph.erase_node(node)

    def _of_placeholder(self, node: Node, spec: InputSpec) -> tuple[Node, Node]:
        """The pair in place of a complex input: only a constant can be one."""
        if spec.kind is InputKind.USER_INPUT:
            message = f"the input `{node.name}` is complex, and a program takes real tensors"
            hint = "take a pair, a tensor whose last size is 2, and begin with `x = torch.view_as_complex(x)`"
            raise BuildError.at(self._path, message, hint)
        if spec.target in self._program.graph_signature.buffers_to_mutate.values():
            message = f"the method writes to the buffer `{spec.target}`, which is complex: programs keep real tensors"
            hint = "keep pairs, tensors whose last size is 2, and view them by `torch.view_as_complex` in the method"
            raise BuildError.at(self._path, message, hint)
        content = self._program.constants.get(spec.target)
        if not isinstance(content, torch.Tensor) or type(content) is not torch.Tensor:
            kind = "parameter" if spec.kind is InputKind.PARAMETER else "buffer"
            message = f"the {kind} `{spec.target}` is complex, and weights files and programs hold real tensors"
            hint = (
                "keep `torch.view_as_real` of it, and call `torch.view_as_complex` in the method; or, if no weights "
                "file has it, register it with `persistent=False`"
            )
            raise BuildError.at(self._path, message, hint)
        resolved = content.detach().resolve_conj()
        real, imag = (
            self._placeholder(f"{spec.target}_{name}".replace(".", "_"), part.contiguous().clone())
            for name, part in (("real", resolved.real), ("imag", resolved.imag))
        )
        return real, imag

    def _written(self, node: Node) -> Any:
        """What takes the place of the result of an operator."""
        if node.target in (_aten.real.default, _aten.imag.default) and node.args[0] in self._pairs:
            return self._pairs[node.args[0]][node.target is _aten.imag.default]
        with self._graph.inserting_before(node):
            results = self._traced(_function(node), node.args, node.kwargs, node)
        return results[0] if len(results) == 1 and isinstance(node.meta.get("val"), torch.Tensor) else results

    def _traced(self, function: Callable[..., Any], args: Any, kwargs: Any, node: Node) -> Any:
        """Adds the operators of a call to the graph.

        Returns:
            The results, in order: a node for a real one, and two for a complex one.
        """
        from torch.fx.experimental.proxy_tensor import make_fx

        leaves, spec = pytree.tree_flatten((args, kwargs))
        inputs = [each for leaf in leaves if isinstance(leaf, Node) for each in self._pairs.get(leaf, (leaf,))]
        call = _Call(function, leaves, spec, self._pairs, self._transforms)
        try:
            with self._fake or nullcontext(), enable_python_dispatcher():
                traced = make_fx(call)(*(each.meta["val"] for each in inputs))
        except PASSING:
            raise
        except Exception as error:
            raise self._error(node, error) from error
        if any(_is_complex(each.meta.get("val")) for each in traced.graph.nodes):
            raise self._error(node, None)
        results = iter(self._inlined(traced, inputs, node))
        return [(next(results), next(results)) if is_pair else next(results) for is_pair in call.are_pairs]

    def _inlined(self, traced: torch.fx.GraphModule, inputs: list[Node], node: Node) -> list[Any]:
        traced.graph.eliminate_dead_code()  # such as `is_pinned`
        given, new = iter(inputs), dict[Node, Any]()
        names = {id(value): placeholder for placeholder, value in self._constants.values()}
        for each in traced.graph.nodes:
            if each.op == "placeholder":
                new[each] = next(given)
            elif each.op == "get_attr":
                value = getattr(traced, each.target)
                new[each] = names.get(id(value)) or self._lifted(value, node)
            elif each.op == "output":
                return [new[result] if isinstance(result, Node) else result for result in each.args[0]]
            elif each.target in (_aten.detach.default, _aten.lift_fresh.default):
                new[each] = new[each.args[0]]
            else:
                new[each] = self._graph.node_copy(each, new.__getitem__)
                kept = {key: value for key, value in node.meta.items() if key not in ("val", "tensor_meta")}
                new[each].meta = {**kept, "val": each.meta["val"]}
        raise AssertionError("a graph has an output")

    def _lifted(self, value: torch.Tensor, node: Node) -> Node:
        """The input for a number that a decomposition of a node needs."""
        content = getattr(value, "constant", None)
        content = value if content is None else content
        if self._fake is not None and self._fake.is_our_fake(content):
            raise self._error(node, None)
        return self._placeholder(f"number_{len(self._constants)}", content.detach().clone())

    def _constant(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """For a computation while an operator is traced: a tensor that stands for a constant of the program."""
        if name not in self._constants:
            from torch._subclasses.fake_tensor import unset_fake_temporarily
            from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

            with disable_proxy_modes_tracing(), unset_fake_temporarily():
                content = make().contiguous()
            self._placeholder(name, content)
        return self._constants[name][1]

    def _placeholder(self, name: str, content: torch.Tensor) -> Node:
        """Adds an input for a constant, before the inputs of the user."""
        signature = self._program.graph_signature
        specs = signature.input_specs
        index = next((at for at, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT), len(specs))
        nodes = self._graph.find_nodes(op="placeholder")
        before = nodes[index] if index < len(nodes) else next(n for n in self._graph.nodes if n.op != "placeholder")
        with self._graph.inserting_before(before):
            node = self._graph.placeholder(f"c_{name}")
        node.target = node.name  # which is unique: the names of `a.b` and `a_b` would be equal
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

        with disable_proxy_modes_tracing(), unset_fake_temporarily():
            value = content if self._fake is None else self._fake.from_tensor(content, static_shapes=True)
        node.meta = {"val": value}
        target = name
        while target in self._program.constants or target in self._program.state_dict:
            target += "_"
        self._program.constants[target] = content
        specs.insert(index, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), target))
        self._constants[name] = node, value
        return node

    def _error(self, node: Node, error: Exception | None) -> BuildError:
        from etplugins.upstream.complex_operators import Unsupported
        from etplugins.upstream.fourier import CannotTransform

        name = str(node.target)
        if isinstance(error, CannotTransform):
            message = f"the Fourier transform `{name}` {error}"
            hint = "a program computes transforms of fixed sizes as products of matrices: fix the size, or pad to one"
        else:
            why = f": it {error}" if isinstance(error, Unsupported) else f": {summary(error)}" if error else ""
            message = f"`{name}` of complex numbers has no form in real numbers{why}"
            hint = f"ExecuTorch has few kernels for complex tensors: {_INSTEAD}"
        return BuildError.at(self._path, message, hints(source_lines.shown([*_lines(node)]), hint))

    def _note(self) -> None:
        """A note about the cost of Fourier transforms."""
        from etplugins.upstream.fourier import shown

        sizes = self._transforms.sizes
        if not sizes:
            return
        held = [value for name, (_, value) in self._constants.items() if name.startswith("fourier_")]
        points = ", ".join(map(str, dict.fromkeys(sizes)))
        method = self._path[1] if len(self._path) > 1 else "forward"
        notes.add(
            f"`{method}`: {len(sizes)} Fourier transform{'s' if len(sizes) > 1 else ''} of {points} points "
            f"{'are products' if len(sizes) > 1 else 'is a product'} of matrices, with "
            f"{shown(sum(each.nbytes for each in held))}B of constants and "
            f"{shown(self._transforms.multiplications).strip()} multiplications in a call"
        )


class _Call:
    """A call of an operator as a function of real tensors. It returns the parts of its results.

    Attributes:
        are_pairs: For each result of the last call, whether it is complex.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: list[Any],
        spec: pytree.TreeSpec,
        pairs: dict[Node, Any],
        transforms: Transforms,
    ) -> None:
        self._function, self._leaves, self._spec = function, leaves, spec
        self._pairs, self._transforms = pairs, transforms
        self.are_pairs: list[bool] = []

    def __call__(self, *values: Any) -> list[Any]:
        from torch._subclasses.complex_tensor import ComplexTensor

        from etplugins.upstream.complex_operators import InRealNumbers

        given = iter(values)
        args, kwargs = pytree.tree_unflatten([self._given(leaf, given) for leaf in self._leaves], self._spec)
        with InRealNumbers(self._transforms):
            results = pytree.tree_leaves(self._function(*args, **kwargs))
        self.are_pairs = [isinstance(each, ComplexTensor) for each in results]
        return [
            part for each in results for part in ((each.re, each.im) if isinstance(each, ComplexTensor) else (each,))
        ]

    def _given(self, leaf: Any, given: Iterator[Any]) -> Any:
        from torch._subclasses.complex_tensor import ComplexTensor

        if not isinstance(leaf, Node):
            return leaf
        return ComplexTensor(next(given), next(given)) if leaf in self._pairs else next(given)


def _function(node: Node) -> Callable[..., Any]:
    """The function that a node calls, or one that computes the same in operators that can be lowered."""
    from etplugins.upstream import spectra

    written: dict[Any, Callable[..., Any]] = {
        _aten.stft.default: spectra.stft,
        _aten.stft.center: spectra.centered,
        _aten.istft.default: spectra.istft,
    }
    target: Any = node.target
    return written.get(target, target)  # type: ignore[no-any-return]


def _lines(node: Node) -> Iterator[source_lines.Line]:
    line = source_lines.innermost(node.meta.get("stack_trace") or "", active_finder().name_of)
    if line is not None:
        yield line
