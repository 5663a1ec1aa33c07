"""Example inputs as PyTorch objects, and their dynamic shapes in the form that `torch.export` accepts.

An export saves the inputs of its methods for the comparison. Lowering does not read them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from etbuild import plugins
from etbuild.errors import BuildError, DocumentPath, InputError, counted, did_you_mean
from etbuild.files import writing
from etbuild.files.digests import digest
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.model.tensor_bytes import row_major
from etbuild.model.tensor_files import read_tensors
from etbuild.plan.parts import (
    ContainerExample,
    Dim,
    Example,
    ExportMethod,
    FactoryCall,
    FileExample,
    ModelExample,
    Shapes,
    TensorExample,
    ValueExample,
)

_IMAGE_DIMENSIONS = 4  # batch, channels, height, width
_PARTS = 1 << 24  # random numbers are whole multiples of 1 / _PARTS: float32 holds these exactly
_PLAIN = (bool, int, float, str, type(None))


def make(
    method: ExportMethod, module: torch.nn.Module, path: DocumentPath, context: StepContext
) -> tuple[tuple[Any, ...], dict[str, object]]:
    """Makes the positional and keyword inputs of a method.

    Args:
        method: The method in the export plan.
        module: The module that has the method. It may decide the shapes of inputs.
        path: The document path of the method.
        context: The declared inputs of the step, which contain factories and files.

    Returns:
        The positional inputs, and the keyword inputs by name.

    Raises:
        InputError: A file is not declared, or does not contain a tensor.
        BuildError: A factory failed, or returned a value that cannot be an input.
    """
    arguments = tuple(
        make_one(example, module, (*path, "example_inputs", index), context)
        for index, example in enumerate(method.example_inputs)
    )
    if method.samples is not None and not (arguments or method.example_kwargs):
        arguments = plugins.load("samples", "files").first(method.samples, (*path, "samples"), context)
    keywords = {
        name: make_one(example, module, (*path, "example_kwargs", name), context)
        for name, example in method.example_kwargs.items()
    }
    return arguments, keywords


def make_one(example: Example, module: torch.nn.Module, path: DocumentPath, context: StepContext) -> Any:
    """Makes one input.

    Args:
        example: The input in the export plan.
        module: The module whose method takes the input.
        path: The document path of the input.
        context: The declared inputs of the step, which contain factories and files.

    Raises:
        InputError: A file is not declared, or does not contain a tensor.
        BuildError: A factory failed, or returned a value that cannot be an input.
    """
    if isinstance(example, ContainerExample):
        values = {
            key: make_one(part, module, (*path, example.kind, key), context) for key, part in example.parts.items()
        }
        return values if example.kind == "dict" else {"list": list, "tuple": tuple}[example.kind](values.values())
    if isinstance(example, ValueExample):
        return example.value
    if isinstance(example, FactoryCall):
        return _from_factory(example, path)
    if isinstance(example, FileExample) and example.loader is not None:
        return _from_loader(example, example.loader, path, context)
    if isinstance(example, FileExample):
        return _tensor_from_file(example, path, context.inputs)
    if isinstance(example, ModelExample):
        return plugins.load("example_input", example.of_model)(module, example, path)
    with wrap_user_error(path, "making the example input"):
        return _filled(example, getattr(torch, example.dtype), path)


def _filled(example: TensorExample, dtype: torch.dtype, path: DocumentPath) -> torch.Tensor:
    """A tensor with the values that the manifest asks for."""
    fill, count = example.fill, torch.Size(example.shape).numel()
    if fill == "arange":
        return torch.arange(count).reshape(example.shape).to(dtype)
    if fill == "random" and dtype.is_floating_point:
        place = path[path.index("methods") + 2 :] if "methods" in path else path  # without the method's name
        generator = torch.Generator().manual_seed(int(digest([*place])[:12], 16))
        whole = torch.randint(1, _PARTS, example.shape, generator=generator)  # gives the same numbers on each processor
        return (whole.to(torch.float64) / _PARTS).to(dtype)
    value = {"random": 0, "zeros": 0, "ones": 1}.get(fill, fill) if isinstance(fill, str) else fill
    return torch.full(example.shape, value, dtype=dtype)


def _from_factory(example: FactoryCall, path: DocumentPath) -> Any:
    path = (*path, "factory")
    factory = load_callable(example.factory, path)
    with wrap_user_error(path, f"`{example.factory}`"):
        return checked(factory(**example.kwargs), f"`{example.factory}` returned", path)


def _from_loader(example: FileExample, loader: str, path: DocumentPath, context: StepContext) -> Any:
    file = context.inputs.find_data(example.file, (*path, "file"))
    path = (*path, "loader")
    load = load_callable(loader, path)
    with wrap_user_error(path, f"`{loader}`"):
        return checked(load(file), f"`{loader}` returned", path)


def checked(value: Any, origin: str, path: DocumentPath) -> Any:
    """A value with detached tensors, and with mappings in the order of their keys, as in a manifest. Raises BuildError
    if it cannot be an input; `origin` begins the message."""
    if isinstance(value, torch.Tensor):
        return _of_known_layout(value.detach())
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (list, tuple):
        return type(value)(checked(part, origin, path) for part in value)
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: checked(part, origin, path) for key, part in sorted(value.items())}
    hint = "an input is a tensor, a number, a boolean, a string, None, or a list, tuple or dict of them"
    actual = f"{type(value).__name__}, not a tensor"
    plain = next((kind for kind in (list, tuple, dict) if isinstance(value, kind)), None)
    if type(value) is dict:
        key = next(key for key in value if not isinstance(key, str))
        actual, hint = f"a dict with the key {key!r}", "use strings as keys"
    elif plain is not None:
        actual = f"{type(value).__name__}, a subclass of {plain.__name__}"
        hint = f"return a plain {plain.__name__}"
    raise BuildError.at(path, f"{origin} {actual}", hint)


def _of_known_layout(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in a layout that all runtimes take: row-major or channels_last. A view may have another layout, and the
    runtime of Python refuses channels_last_3d."""
    if tensor.layout != torch.strided:
        return tensor
    is_image = tensor.dim() == _IMAGE_DIMENSIONS and not tensor.is_contiguous()
    is_last = is_image and tensor.is_contiguous(memory_format=torch.channels_last)
    of_tensor = torch.channels_last if is_last else torch.contiguous_format
    # Dimensions of size 1 may have any stride, and the stride would reach the program.
    strides = torch.empty(tensor.shape, device="meta", memory_format=of_tensor).stride()
    return tensor if tensor.stride() == strides else tensor.clone(memory_format=of_tensor)


def _tensor_from_file(example: FileExample, path: DocumentPath, inputs: Given) -> torch.Tensor:
    file = inputs.find_data(example.file, (*path, "file"))
    tensors = read_tensors(example.file, file, (*path, "file"))
    key = example.key or ""
    if key not in tensors:
        raise InputError.at(
            (*path, "key" if key else "file"), f"`{example.file}` has no tensor `{key}`", did_you_mean(key, tensors)
        )
    return tensors[key]


class DynamicShapes:
    """The dynamic shapes of a method.

    Attributes:
        positional: The shape of each positional input, in the form that `torch.export` accepts.
        keyword: The shape of each keyword input in the same form, by name.
        leaves: The shape and document path of each tensor and plain value, in the order of the method's inputs. The
            shape is None for an input without dynamic shapes.
    """

    def __init__(
        self, method: ExportMethod, arguments: tuple[Any, ...], keywords: dict[str, object], path: DocumentPath
    ) -> None:
        """Converts the shapes in the export plan. Dimensions with equal names become one `Dim`.

        Args:
            method: The method in the export plan.
            arguments: The positional inputs of the method.
            keywords: The keyword inputs of the method, by name.
            path: The document path of the method.

        Raises:
            InputError: The structure of the shapes differs from that of the inputs.
        """
        self._dims: dict[str, Any] = {}
        self._texts: dict[int, str] = {}
        self._names = dimension_names(method)
        self.leaves: list[tuple[tuple[Any, ...] | None, DocumentPath]] = []
        shapes_path: DocumentPath = (*path, "dynamic_shapes")
        self.positional = tuple(
            zip_tree(shapes, value, self._shape, (*shapes_path, index))
            for index, (shapes, value) in enumerate(zip_longest(method.dynamic_shapes, arguments))
        )
        shapes_path = (*path, "dynamic_kwargs_shapes")
        self.keyword = {
            name: zip_tree(method.dynamic_kwargs_shapes[name], value, self._shape, (*shapes_path, name))
            for name, value in keywords.items()
        }

    def for_export(self, forward: Callable[..., Any]) -> dict[str, object] | None:
        """The argument `dynamic_shapes` of `torch.export.export`; None if every size is fixed.

        Args:
            forward: The callable that is exported. The shapes are bound to its parameters.
        """
        if not self._dims:
            return None
        return dict(inspect.signature(forward).bind(*self.positional, **self.keyword).arguments)

    def _shape(self, shapes: Shapes, value: Any, path: DocumentPath) -> tuple[Any, ...] | None:
        shape = None if shapes is None else self._tensor_shape(shapes, value, path)
        self.leaves.append((shape, path))
        return shape

    def _tensor_shape(self, entries: Shapes, value: Any, path: DocumentPath) -> tuple[Any, ...]:
        if not isinstance(value, torch.Tensor):
            raise _misfit(f"the input is {type(value).__name__}, which has no dimensions", path)
        if not isinstance(entries, tuple):
            raise _misfit("the input is a tensor", path)
        dims = [entry for entry in entries if entry is None or isinstance(entry, Dim)]
        if len(dims) < len(entries):
            raise _misfit("the input is a tensor", path)
        if len(dims) != value.dim():
            said = f"{counted(len(dims), 'entry')} for an input of {counted(value.dim(), 'dimension')}"
            raise _misfit(said, path)
        return tuple(torch.export.Dim.STATIC if dim is None else self._dim(dim) for dim in dims)

    def _dim(self, dim: Dim) -> Any:
        """The `Dim` of torch for a dimension. Equal names get the same object."""
        size = self._dims.setdefault(dim.dim, self._named_dim(dim))
        size = dim.times * size if dim.times != 1 else size
        size = size + dim.plus if dim.plus else size
        self._texts[id(size)] = dim.text  # `self` keeps the object
        return size

    def _named_dim(self, dim: Dim) -> Any:
        """The `Dim` of torch for a name of the manifest, without factor and summand."""
        step = dim.multiple_of
        if step == 1:
            return torch.export.Dim(dim.dim, min=dim.min, max=dim.max)
        # For torch, a multiple is always derived from another dimension: here from one that no input has.
        hidden = f"{dim.dim}_by_{step}"
        while hidden in self._names:
            hidden += "_"
        return step * torch.export.Dim(hidden, min=dim.min // step, max=dim.max // step if dim.max else None)

    def text_of(self, dim: Any) -> str:
        """The size of a dimension, as the manifest writes it."""
        return self._texts[id(dim)]


def zip_tree(
    shapes: Shapes, value: Any, of_leaf: Callable[[Shapes, Any, DocumentPath], Any], path: DocumentPath
) -> Any:
    """Calls a function for each leaf of an input, with the shapes of the leaf.

    Args:
        shapes: The dynamic shapes of the input.
        value: The input.
        of_leaf: The function. Gets the shapes, the leaf, and the place of the shapes.
        path: The place of the shapes of the whole input.

    Returns:
        The results, in the form of the input.

    Raises:
        InputError: The structure of the shapes differs from that of the input.
    """
    if isinstance(value, (list, tuple)):
        if shapes is not None and (not isinstance(shapes, (list, tuple)) or len(shapes) != len(value)):
            raise _misfit(f"the input is a {type(value).__name__} of {len(value)}", path)
        parts = enumerate(zip(shapes or [None] * len(value), value, strict=True))
        return type(value)(zip_tree(*pair, of_leaf, (*path, index)) for index, pair in parts)
    if isinstance(value, dict):
        by_key = {} if shapes is None else shapes
        if not isinstance(by_key, dict) or by_key.keys() - value:
            raise _misfit(f"the input is a mapping of {', '.join(value)}", path)
        return {key: zip_tree(by_key.get(key), part, of_leaf, (*path, key)) for key, part in value.items()}
    return of_leaf(shapes, value, path)


def _misfit(message: str, path: DocumentPath) -> InputError:
    return InputError.at(path, message, "write dynamic shapes in the structure of the input")


def dimension_names(method: ExportMethod) -> set[str]:
    """The names of the dynamic dimensions of a method."""
    return set(_names([method.dynamic_shapes, method.dynamic_kwargs_shapes]))


def _names(shapes: Any) -> Iterator[str]:
    """The names of the dimensions in dynamic shapes."""
    if isinstance(shapes, Dim):
        yield shapes.dim
    elif isinstance(shapes, (list, tuple, dict)):
        for part in shapes.values() if isinstance(shapes, dict) else shapes:
            yield from _names(part)


def with_batch(shapes: Shapes, value: Any) -> Shapes:
    """Makes the first dimension of each tensor of an input dynamic, if it is fixed.

    Args:
        shapes: The dynamic shapes of the input in the export plan.
        value: The input.

    Returns:
        The dynamic shapes. The added dimensions are all the same dimension, with any size from 1.
    """
    batched: Shapes = zip_tree(shapes, value, _with_batch, ())
    return batched


def _with_batch(shapes: Shapes, value: Any, path: DocumentPath) -> Shapes:
    del path
    if not isinstance(value, torch.Tensor) or not value.dim():
        return shapes
    dims = shapes if isinstance(shapes, tuple) and shapes else (None,) * value.dim()
    return (dims[0] or Dim("dynamic_batch_size", 1, None, 1, 1, 0), *dims[1:])


def in_signature_order(entry: Callable[..., Any], keywords: dict[str, object], path: DocumentPath) -> dict[str, object]:
    """Sorts keyword inputs in the order of the entry's parameters, in which `torch.export` passes them.

    Args:
        entry: The callable that is exported.
        keywords: The keyword inputs by name.
        path: The document path of the keyword inputs.

    Raises:
        InputError: The entry has no parameter with the name of an input.
    """
    parameters = inspect.signature(entry).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [name for name in keywords if name not in parameters]
    if unknown and not takes_any:
        hint = did_you_mean(unknown[0], parameters)
        raise InputError.at((*path, unknown[0]), f"the method has no parameter `{unknown[0]}`", hint)
    order = {name: index for index, name in enumerate(parameters)}
    return dict(sorted(keywords.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def check_fit(
    entry: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any], path: DocumentPath
) -> None:
    """Fails if the entry cannot be called with the inputs, for instance because one is missing.

    Call this only after a failed export: hooks of a module may add inputs that this check does not see.

    Args:
        entry: The callable that is exported.
        arguments: The positional inputs.
        keywords: The keyword inputs by name.
        path: The document path of the positional inputs.

    Raises:
        InputError: The inputs do not fit. The hint names the parameters.
    """
    signature = inspect.signature(entry)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
        plain_signature = inspect.Signature(parameters)
        hint = f"its parameters are {plain_signature}; `example_inputs` gives them in order, `example_kwargs` by name"
        raise InputError.at(path, f"the inputs do not fit the method: {error}", hint) from None


def inputs_of_program(program: ExportedProgram) -> list[Any]:
    """The example inputs of an exported method, in the method's order: tensors and plain values.

    If a method's file has no example inputs, returns tensors of ones in the smallest sizes that the method takes.
    """
    if program.example_inputs is not None:
        leaves: list[Any] = pytree.tree_leaves(program.example_inputs)
        return leaves
    return [_ones(program, value) if isinstance(value, torch.Tensor) else value for value in inputs_of_graph(program)]


def inputs_of_graph(program: ExportedProgram) -> list[Any]:
    """The inputs of an exported method from its graph, in the method's order: fake tensors and plain values."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    return [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else nodes[spec.arg.name].meta.get("val")
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    ]


def _ones(program: ExportedProgram, fake_tensor: torch.Tensor) -> torch.Tensor:
    sizes = [
        size if isinstance(size, int) else max(int(program.range_constraints[size.node.expr].lower), 2)
        for size in fake_tensor.shape
    ]
    return torch.ones(sizes, dtype=fake_tensor.dtype)


def save_inputs(path: Path, programs: Mapping[str, ExportedProgram]) -> None:
    """Writes the example inputs of methods, except methods with an input that safetensors cannot hold.

    Args:
        path: The file.
        programs: The exported methods, by name.

    Raises:
        BuildError: The file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, program in programs.items():
        leaves = inputs_of_program(program)
        tensors_of_method = {
            f"{name}/{index}": row_major(leaf.detach()).clone()
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor)
        }
        try:
            save(tensors_of_method)
        except (SafetensorError, KeyError, ValueError):  # safetensors does not support the dtype
            continue
        tensors.update(tensors_of_method)
    writing.write(path.parent, path.name, "export", save(tensors))


def saved_inputs(path: Path, name: str, program: ExportedProgram) -> list[Any] | None:
    """Reads the example inputs of a method, in the method's order.

    Args:
        path: The file that `save_inputs` made.
        name: The name of the method.
        program: The method.

    Returns:
        Tensors and plain values; None if the file has none for the method.

    Raises:
        InputError: The file is damaged.
    """
    specs = [spec.arg for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    with (
        wrap_library_errors(InputError, None, f"{path}: not the example inputs of an export"),
        safe_open(path, "pt") as file,
    ):
        names, inputs = set(file.keys()), list[Any]()
        for index, argument in enumerate(specs):
            if isinstance(argument, ConstantArgument):
                inputs.append(argument.value)
            elif f"{name}/{index}" not in names:
                return None
            else:
                inputs.append(file.get_tensor(f"{name}/{index}"))
        return inputs
