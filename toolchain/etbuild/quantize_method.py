"""Quantizes an exported method: PyTorch 2 Export quantization, with calibration or training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.export.dynamic_shapes import Dim
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e import (
    allow_exported_model_train_eval,
    move_exported_model_to_eval,
    move_exported_model_to_train,
)
from torchao.quantization.pt2e.constant_fold import constant_fold
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import ComposableQuantizer, Quantizer

from etbuild import backends
from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.inputs import Inputs
from etbuild.module import named_tensors
from etbuild.plan import QUANTIZE_HOOKS
from etbuild.sources import SourceFinder, blame, load_callable
from etbuild.tensors import dtype_name, read_tensors

if TYPE_CHECKING:
    from executorch.export import QuantizationRecipe

Batches = Iterable[tuple[Any, ...]]
_QUANTIZE_WEIGHT = ("quantize_per_channel", "quantize_per_tensor", "quantize_affine")


@dataclass(frozen=True)
class Quantization:
    """How a method is quantized, as objects.

    Attributes:
        quantizer: Says what is quantized.
        batches: What the method is calibrated on.
        train: Trains it instead, given the prepared graph module.
        passes: Callables on a graph module, by where they are called.
        fold: The backend takes weights that are quantized already.
        path: Where the manifest says so.
        any_length: Whether the first dimension of a batch may have any size.
    """

    quantizer: Quantizer
    batches: Batches
    train: Callable[[GraphModule], object] | None
    passes: dict[str, list[Callable[[GraphModule], GraphModule]]]
    fold: bool
    path: DocumentPath
    any_length: bool = False

    def check_batches(self, arguments: tuple[Any, ...], dims: list[tuple[Any, ...] | None]) -> None:
        """Whether the method can take the batches: PyTorch would run it on others too, and find other ranges.

        Args:
            arguments: The example inputs.
            dims: For each tensor and plain value of them the dimensions, as `torch.export` takes them; None: fixed.

        Raises:
            InputError: It cannot.
        """
        expected, form = pytree.tree_flatten_with_path(arguments)
        for number, batch in enumerate(self.batches):
            leaves, own_form = pytree.tree_flatten_with_path(batch)
            if own_form != form:
                raise self._misfit(f"batch {number}", batch, arguments)
            for (_, value), (place, example), sizes in zip(leaves, expected, dims, strict=True):
                if not self._fits(value, example, sizes):
                    raise self._misfit(f"batch {number}, input {pytree.keystr(place)}", value, example)

    def _fits(self, value: Any, example: Any, dims: tuple[Any, ...] | None) -> bool:
        if not isinstance(value, torch.Tensor) or not isinstance(example, torch.Tensor):
            return type(value) is type(example) and bool(value == example)
        if value.dtype != example.dtype or value.dim() != example.dim():
            return False
        return all(
            dim.min <= size <= dim.max if isinstance(dim, Dim) else size == wanted or (self.any_length and not index)
            for index, (size, wanted, dim) in enumerate(
                zip(value.shape, example.shape, dims or [None] * value.dim(), strict=True)
            )
        )

    def _misfit(self, what: str, value: Any, wanted: Any) -> InputError:
        message = f"{what} is {_shown(value)}, and the method takes {_shown(wanted)}"
        hint = "a batch is a tuple with a value for each input, of the dtype and shape that `example_inputs` says"
        return InputError([Problem(message, (*self.path, "calibration"), hint)])


def _shown(values: Any) -> str:
    def one(value: Any) -> Any:
        return f"{dtype_name(value)} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)

    return str(pytree.tree_map(one, values)).replace("'", "")


def from_plan(
    pt2e: dict[str, Any], arguments: tuple[Any, ...], path: DocumentPath, inputs: Inputs, finder: SourceFinder
) -> Quantization:
    """The quantization that a plan describes.

    Args:
        pt2e: Of the plan.
        arguments: The example inputs.
        path: Where the manifest says so.
        inputs: What may be read.
        finder: The declared sources.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: A quantizer cannot be made.
    """
    return Quantization(
        _quantizer(pt2e, path, finder),
        calibration_batches(pt2e, arguments, path, inputs, finder),
        load_callable(pt2e["qat"], finder, (*path, "qat")) if pt2e["qat"] else None,
        {
            hook: [load_callable(name, finder, (*path, "passes", hook, index)) for index, name in enumerate(names)]
            for hook, names in pt2e["passes"].items()
        },
        all(backends.get(entry["backend"]).fold_quantize for entry in pt2e["quantizers"]),
        path,
    )


def from_recipe(
    recipe: QuantizationRecipe,
    pt2e: dict[str, Any] | None,
    arguments: tuple[Any, ...],
    path: DocumentPath,
    inputs: Inputs,
    finder: SourceFinder,
) -> Quantization:
    """The quantization of one of ExecuTorch's recipes, calibrated as the manifest says, or as the recipe does.

    Args:
        recipe: Of ExecuTorch. It has quantizers.
        pt2e: Of the plan, without quantizers; None: the manifest says nothing.
        arguments: The example inputs.
        path: Where the manifest says so.
        inputs: What may be read.
        finder: The declared sources.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: A callable failed.
    """
    if pt2e is not None:
        batches = calibration_batches(pt2e, arguments, path, inputs, finder)
    elif recipe.calibration_inputs_fn is not None:
        with blame(path, "the calibration inputs of the recipe", finder):
            batches = [tuple(batch) for batch in recipe.calibration_inputs_fn()]  # ExecuTorch takes lists too
    else:
        batches = [arguments]
    hooks = {hook: list(getattr(recipe, f"{hook}_passes") or []) for hook in QUANTIZE_HOOKS}
    quantizers = list(recipe.quantizers or [])
    quantizer = quantizers[0] if len(quantizers) == 1 else ComposableQuantizer(quantizers)
    train = recipe.train_fn if recipe.is_qat else None
    return Quantization(quantizer, batches, train, hooks, True, path, bool(recipe.dynamic_batch_size))


def quantize_method(graph_module: GraphModule, how: Quantization, finder: SourceFinder) -> GraphModule:
    """A method with quantized operators, to be exported again.

    Args:
        graph_module: The exported method, with its weights. It is changed.
        how: The quantization.
        finder: The declared sources, for errors.

    Raises:
        BuildError: A quantizer, a pass, or the method on its calibration inputs failed.
    """
    with _arithmetic_of_every_processor():
        own = {name for name, _ in graph_module.named_buffers()}  # observers have buffers too
        graph_module = _run_passes("pre_prepare", graph_module, how, finder)
        with blame((*how.path, "quantizers"), "preparing the method", finder):
            prepared = (prepare_qat_pt2e if how.train else prepare_pt2e)(graph_module, how.quantizer)
        prepared = _run_passes("post_prepare", prepared, how, finder)
        if how.train is not None:
            _train(prepared, how.train, (*how.path, "qat"), finder)
        else:
            _calibrate(prepared, own, how.batches, (*how.path, "calibration"), finder)
        prepared = _run_passes("pre_convert", prepared, how, finder)
        with blame((*how.path, "quantizers"), "quantizing the method", finder):
            converted = _convert(prepared, how.fold)
        return _run_passes("post_convert", converted, how, finder)


@contextmanager
def _arithmetic_of_every_processor() -> Iterator[None]:
    """The same sums wherever the ranges are found: one thread, and no library that chooses by the processor.

    What PyTorch and MKL choose by themselves the process's environment settles, see `__main__`.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    nnpack = torch.backends.nnpack.set_flags(False)
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        torch.backends.nnpack.set_flags(*nnpack)
        torch.set_num_threads(threads)


def _quantizer(pt2e: dict[str, Any], path: DocumentPath, finder: SourceFinder) -> Quantizer:
    made = []
    for index, entry in enumerate(pt2e["quantizers"]):
        here = (*path, "quantizers", index)
        create = backends.get(entry["backend"]).create_quantizer
        assert create is not None

        def load(reference: str, here: DocumentPath = here) -> Any:
            return load_callable(reference, finder, (*here, "options", "factory"))

        with blame(here, f"making the quantizer of `{entry['backend']}`", finder):
            made.append(create({**entry["options"], "qat": pt2e["qat"] is not None}, load))
    return made[0] if len(made) == 1 else ComposableQuantizer(made)


def _run_passes(hook: str, graph_module: GraphModule, how: Quantization, finder: SourceFinder) -> GraphModule:
    for index, call in enumerate(how.passes[hook]):
        here, name = (*how.path, "passes", hook, index), getattr(call, "__name__", type(call).__name__)
        with blame(here, f"`{name}`", finder):
            graph_module = call(graph_module)
        if not isinstance(graph_module, GraphModule):
            message = f"`{name}` returned {type(graph_module).__name__}, not a torch.fx.GraphModule"
            raise BuildError([Problem(message, here)])
    return graph_module


def calibration_batches(
    pt2e: dict[str, Any], arguments: tuple[Any, ...], path: DocumentPath, inputs: Inputs, finder: SourceFinder
) -> Batches:
    """What a plan calibrates a method on.

    Raises:
        InputError: The file is not declared, or does not fit.
        BuildError: The factory failed, or returned nothing.
    """
    calibration, here = pt2e["calibration"], (*path, "calibration")
    if "file" in calibration:
        return _batches_of_file(calibration, len(arguments), here, inputs)
    if "factory" not in calibration:
        return [arguments]
    create = load_callable(calibration["factory"], finder, (*here, "factory"))
    with blame((*here, "factory"), f"`{calibration['factory']}`", finder):
        batches = [batch if isinstance(batch, tuple) else (batch,) for batch in create(**calibration["kwargs"])]
    if not batches:
        raise BuildError([Problem(f"`{calibration['factory']}` returned no batches", (*here, "factory"))])
    return batches


def _batches_of_file(calibration: dict[str, Any], count: int, path: DocumentPath, inputs: Inputs) -> Batches:
    name = calibration["file"]
    tensors = read_tensors(name, inputs.find_data(name, (*path, "file")), (*path, "file"))
    keys = calibration.get("keys", list(tensors) if len(tensors) == 1 else [])
    if len(keys) != count:
        hint = f"write `keys:` with a name for each input; `{name}` has {', '.join(tensors)}"
        raise InputError([Problem(f"{len(keys)} keys for {count} inputs", (*path, "keys"), hint)])
    missing = [key for key in keys if key not in tensors]
    if missing:
        message = f"`{name}` has no tensor `{missing[0]}`"
        raise InputError([Problem(message, (*path, "keys"), did_you_mean(missing[0], tensors))])
    lengths = {key: len(tensors[key]) if tensors[key].dim() else 0 for key in keys}
    if len(set(lengths.values())) > 1 or not all(lengths.values()):
        shown = ", ".join(f"`{key}` {length}" for key, length in lengths.items())
        raise InputError(
            [Problem(f"the tensors of `{name}` hold no equal number of batches: {shown}", (*path, "file"))]
        )
    return [tuple(tensors[key][index] for key in keys) for index in range(lengths[keys[0]])]


def _calibrate(
    prepared: GraphModule, written: set[str], batches: Batches, path: DocumentPath, finder: SourceFinder
) -> None:
    """Runs the method on its batches, one after the other. What it writes to its buffers, as to a cache, is undone."""
    before = {name: buffer.clone() for name, buffer in prepared.named_buffers() if name in written}
    with torch.no_grad():
        for index, batch in enumerate(batches):
            with blame(path, f"running the method on batch {index} of its calibration", finder):
                prepared(*batch)
        for name, buffer in prepared.named_buffers():
            if name in before:
                buffer.copy_(before[name])


def _train(
    prepared: GraphModule, train: Callable[[GraphModule], object], path: DocumentPath, finder: SourceFinder
) -> None:
    for parameter in prepared.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    with blame(path, f"`{getattr(train, '__name__', train)}`", finder), torch.enable_grad():
        allow_exported_model_train_eval(prepared)
        move_exported_model_to_train(prepared)
        train(prepared)
        move_exported_model_to_eval(prepared)
    for parameter in prepared.parameters():
        parameter.requires_grad_(False)


def _convert(prepared: GraphModule, fold: bool) -> GraphModule:
    """`convert_pt2e`, with names for what it makes: by its own numbers two methods would call different weights the
    same, and a tag could not be told from a name.

    Args:
        prepared: The method, with its ranges.
        fold: Whether weights are quantized now, or by an operator that a backend takes.
    """
    converted = convert_pt2e(prepared, fold_quantize=False)
    names = {}
    for node in converted.graph.nodes:
        weight = _quantized_weight(node)
        if weight is not None:
            names[node.name] = weight
            _rename_parameters(converted, node, weight)
    if fold:
        constant_fold(converted, _is_quantize)
    for node in list(converted.graph.find_nodes(op="get_attr")):
        if node.name in names:
            _rename(converted, node, f"{names[node.name]}_quantized")
    _remove_unread(converted)
    converted.recompile()
    return converted


def _is_quantize(node: Node) -> bool:
    return node.op == "call_function" and any(name in str(node.target) for name in _QUANTIZE_WEIGHT)


def _quantized_weight(node: Node) -> str | None:
    """The name of the weight that a node quantizes; None for another node."""
    source = node.args[0] if _is_quantize(node) else None
    return str(source.target) if isinstance(source, Node) and source.op == "get_attr" else None


def _rename_parameters(graph_module: GraphModule, node: Node, weight: str) -> None:
    """Calls the scales and zero points of a weight after it."""
    for argument, name in zip(node.args[1:3], ("scale", "zero_point"), strict=False):
        if isinstance(argument, Node) and argument.op == "get_attr" and str(argument.target).startswith("_"):
            _rename(graph_module, argument, f"{weight}_{name}")


def _rename(graph_module: GraphModule, node: Node, name: str) -> None:
    """Moves what a get_attr node reads to another name, for all that read it."""
    before, value = str(node.target), _get(graph_module, str(node.target))
    number = 1
    free = name
    while _get(graph_module, free) is not None:
        number += 1
        free = f"{name}_{number}"
    prefix, _, leaf = free.rpartition(".")
    graph_module.get_submodule(prefix).register_buffer(leaf, value)
    for other in graph_module.graph.find_nodes(op="get_attr"):
        if other.target == before:
            other.target = free
    _delete(graph_module, before)


def _get(graph_module: GraphModule, name: str) -> Any:
    prefix, _, leaf = name.rpartition(".")
    return getattr(graph_module.get_submodule(prefix), leaf, None)


def _delete(graph_module: GraphModule, name: str) -> None:
    prefix, _, leaf = name.rpartition(".")
    delattr(graph_module.get_submodule(prefix), leaf)


def _remove_unread(graph_module: GraphModule) -> None:
    """Removes the weights that were quantized: nothing reads them any more, and an export would keep them."""
    read = {str(node.target) for node in graph_module.graph.find_nodes(op="get_attr")}
    for name in named_tensors(graph_module):
        if name not in read:
            _delete(graph_module, name)
