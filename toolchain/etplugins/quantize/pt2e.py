"""Quantizes an exported method with PyTorch 2 Export (PT2E) quantization, with calibration or training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import (
    allow_exported_model_train_eval,
    move_exported_model_to_eval,
    move_exported_model_to_train,
    quantize_pt2e,
)
from torchao.quantization.pt2e.constant_fold import constant_fold
from torchao.quantization.pt2e.fake_quantize import FakeQuantizeBase
from torchao.quantization.pt2e.observer import ObserverBase
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import ComposableQuantizer, Quantizer

from etbuild import backends, switches
from etbuild.backends.backend import BuiltInBackend
from etbuild.errors import BuildError, DocumentPath, InputError
from etbuild.export.quantizers import MethodQuantization
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.model.module import named_tensors
from etbuild.patching import replaced
from etplugins.edges import facts as edges
from etplugins.edges.writes import LostWrite, changing, check_observed
from etplugins.quantize import calibration, first_call, shared_layers, transforms
from etplugins.quantize.calibration import Batches
from etplugins.quantize.confined import Limits, confine, forget_kinds
from etplugins.quantize.integers import change_edges
from etplugins.quantize.parts import QUANTIZE_HOOKS, Calibration, Io, OwnInputs, Pt2e, Quantize
from etplugins.quantize.transforms import attribute

if TYPE_CHECKING:
    from executorch.export import QuantizationRecipe

_QUANTIZE_WEIGHT = ("quantize_per_channel", "quantize_per_tensor", "quantize_affine")


@dataclass(frozen=True)
class UserCallable:
    """A callable from the manifest or a recipe.

    Attributes:
        name: The name that errors show.
        path: The document path that names the callable.
        function: The callable.
    """

    name: str
    path: DocumentPath
    function: Callable[[GraphModule], Any]


@dataclass(frozen=True)
class Quantization:
    """The objects that quantize a method.

    Attributes:
        quantizer: Decides which operators are quantized, and how.
        finds: Finds the ranges of values: batches for calibration, or a callable that trains the prepared graph module.
        passes: For each hook point, the passes that run on the graph module there.
        fold: Whether weights are stored quantized; otherwise an operator in the graph quantizes them.
        dynamic_batch: Whether batches may have another size in the first dimension than the example inputs.
        path: The document path of the quantizers.
        io: The types of inputs and outputs, and the document path of the method; None if they are floats.
        limits: What each quantizer of the manifest may quantize.
    """

    quantizer: Quantizer
    finds: Batches | UserCallable
    passes: dict[str, list[UserCallable]]
    fold: bool
    dynamic_batch: bool
    path: DocumentPath
    io: tuple[Io, DocumentPath] | None = None
    limits: tuple[Limits, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether the method is trained; otherwise it is calibrated."""
        return isinstance(self.finds, UserCallable)

    def check_batches(self, arguments: tuple[Any, ...], dims: list[tuple[Any, ...] | None]) -> None:
        """Checks that the method accepts its batches: see `Batches.check`."""
        if isinstance(self.finds, Batches):
            self.finds.check(arguments, dims)

    def quantize(self, program: ExportedProgram, written: set[str], submodules: Collection[str]) -> GraphModule:
        """Quantizes the method: see `quantize_method`."""
        graph_module = program.module(check_guards=False)
        for each in self.limits:
            each.check_modules(graph_module, submodules)
        if self.trains:  # other methods share the parameters that training changes
            return quantize_method(copy.deepcopy(graph_module), self, written)
        buffers = {name for name, _ in graph_module.named_buffers()}
        try:
            return quantize_method(graph_module, self, buffers)
        except LostWrite:
            without_writes = program.run_decompositions({})
            return quantize_method(without_writes.module(check_guards=False), self, buffers)

    def arguments(self, given: tuple[Any, ...], graph_module: GraphModule) -> tuple[Any, ...]:
        """The positional inputs of the quantized graph: integers where `io` says so."""
        return edges.arguments(graph_module, given)


def of_method(
    quantize: Quantize | None,
    recipe: QuantizationRecipe | None,
    arguments: tuple[Any, ...],
    path: DocumentPath,
    context: StepContext,
) -> MethodQuantization:
    """Makes the objects that quantize a method: see `quantizers.of_method`."""
    pt2e, path = quantize.pt2e if quantize is not None else None, (*path, "pt2e")
    if pt2e is not None and pt2e.quantizers:
        return from_plan(pt2e, arguments, path, context)
    if recipe is None or not recipe.quantizers:
        hint = "add a quantizer: `quantizers: [xnnpack]`"
        raise InputError.at(path, "the recipe has no quantizers", hint)
    return from_recipe(recipe, pt2e or Pt2e(), arguments, path, context)


def from_plan(pt2e: Pt2e, arguments: tuple[Any, ...], path: DocumentPath, context: StepContext) -> Quantization:
    """Makes the objects that quantize a method as the plan says.

    Args:
        pt2e: The value of `pt2e` in the plan. It has quantizers.
        arguments: The positional example inputs.
        path: The document path of `pt2e`.
        context: The declared inputs of the step.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: A quantizer cannot be made.
    """
    batches = pt2e.calibration or OwnInputs()
    finds = _training(pt2e, path) or calibration.make(batches, arguments, (*path, "calibration"), context)
    quantizer, limits = _quantizer(pt2e, path, _batches(finds))
    return Quantization(
        quantizer,
        finds,
        _passes(pt2e, path),
        all(backends.get(entry.backend).fold_quantize for entry in pt2e.quantizers),
        False,
        (*path, "quantizers"),
        _io(pt2e, path),
        limits,
    )


def from_recipe(
    recipe: QuantizationRecipe, pt2e: Pt2e, arguments: tuple[Any, ...], path: DocumentPath, context: StepContext
) -> Quantization:
    """Makes the objects that quantize a method as a recipe says.

    The passes of the manifest run after the recipe's. If the manifest has a calibration or a training, it replaces the
    recipe's.

    Args:
        recipe: The recipe. It has quantizers.
        pt2e: The value of `pt2e` in the plan. It has no quantizers.
        arguments: The positional example inputs.
        path: The document path of `pt2e`.
        context: The declared inputs of the step.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: A callable failed, or the recipe and the manifest do not fit together.
    """
    recipe_path, passes_of_manifest = ("recipe",), _passes(pt2e, path)
    passes = {
        hook: [
            *(
                UserCallable("a pass of the recipe", recipe_path, function)
                for function in getattr(recipe, f"{hook}_passes") or []
            ),
            *passes_of_manifest.get(hook, ()),
        ]
        for hook in QUANTIZE_HOOKS
    }
    finds = _training(pt2e, path) or _ranges_finder(recipe, pt2e.calibration, arguments, path, context)
    quantizers = [confine(each, Limits(), _batches(finds)) for each in recipe.quantizers or []]
    quantizer = quantizers[0] if len(quantizers) == 1 else ComposableQuantizer(quantizers)
    return Quantization(quantizer, finds, passes, True, recipe.dynamic_batch_size, recipe_path, _io(pt2e, path))


def _ranges_finder(
    recipe: QuantizationRecipe,
    calibration_plan: Calibration | None,
    arguments: tuple[Any, ...],
    pt2e_path: DocumentPath,
    context: StepContext,
) -> Batches | UserCallable:
    """The object that finds the ranges of values, if the manifest does not train the method."""
    path, calibration_path = ("recipe",), (*pt2e_path, "calibration")
    if recipe.is_qat:
        if calibration_plan is not None:
            hint = "remove `calibration`, or list quantizers of your own"
            raise InputError.at(calibration_path, "the recipe trains the method, so `calibration` has no effect", hint)
        if recipe.train_fn is None:
            hint = 'give the recipe a `train_fn`, or write `quantize: {pt2e: {qat: "module:callable"}}`'
            raise BuildError.at(path, "the recipe has `is_qat` but no `train_fn`", hint)
        return UserCallable("the `train_fn` of the recipe", path, recipe.train_fn)
    if calibration_plan is not None:
        return calibration.make(calibration_plan, arguments, calibration_path, context)
    if recipe.calibration_inputs_fn is None:
        return Batches([arguments], path)
    with wrap_user_error(path, "the calibration inputs of the recipe"):
        return Batches([calibration.as_batch(batch) for batch in recipe.calibration_inputs_fn()], path)


def _batches(finds: Batches | UserCallable) -> Iterable[tuple[Any, ...]]:
    return finds.batches if isinstance(finds, Batches) else ()


def _io(pt2e: Pt2e, path: DocumentPath) -> tuple[Io, DocumentPath] | None:
    return None if pt2e.io is None else (pt2e.io, path[:-2])


def _training(pt2e: Pt2e, path: DocumentPath) -> UserCallable | None:
    reference, qat_path = pt2e.qat, (*path, "qat")
    return UserCallable(f"`{reference}`", qat_path, load_callable(reference, qat_path)) if reference else None


def _passes(pt2e: Pt2e, path: DocumentPath) -> dict[str, list[UserCallable]]:
    def call(reference: str, pass_path: DocumentPath) -> UserCallable:
        return UserCallable(f"`{reference}`", pass_path, load_callable(reference, pass_path))

    return {
        hook: [call(reference, (*path, "passes", hook, index)) for index, reference in enumerate(references)]
        for hook, references in pt2e.passes.of_hooks().items()
    }


def quantize_method(graph_module: GraphModule, quantization: Quantization, written: set[str]) -> GraphModule:
    """Quantizes the operators of a method. The result must be exported again.

    Args:
        graph_module: The exported method with its weights. It is changed in place.
        quantization: The quantization.
        written: The buffers that the method may write to when it runs, such as a cache. Their content is restored
            after calibration or training.

    Raises:
        LostWrite: The method writes to a value that is read later, and to a copy of it if it is quantized.
        BuildError: A quantizer, a pass or the training failed, the method failed on its calibration inputs, or the
            quantizers do not fit the method.
    """
    graph_module = _run_passes("pre_prepare", graph_module, quantization)
    before = _first_results(graph_module, quantization, written)
    if not quantization.trains:
        shared_layers.keep_norms(graph_module)
    preparing = wrap_user_error(quantization.path, "preparing the method")
    with preparing, switches.on("quantizing"), _bodies_in_floats():
        prepare = prepare_qat_pt2e if quantization.trains else prepare_pt2e
        prepared = prepare(graph_module, transforms.keeping_graph(quantization.quantizer, not quantization.trains))
        forget_kinds(prepared)
    _check_prepared(prepared, quantization.path)
    check_observed(prepared.graph, quantization.path)
    _check_finite(prepared, quantization.path)
    first_call.check_unchanged(before, _first_results(prepared, quantization, written), quantization.path)
    prepared = _run_passes("post_prepare", prepared, quantization)
    with _restoring(prepared, written):
        if isinstance(quantization.finds, UserCallable):
            _check_trainable(prepared, quantization.finds.path)
            _train(prepared, quantization.finds)
        else:
            _calibrate(prepared, quantization.finds)
    prepared = _run_passes("pre_convert", prepared, quantization)
    with wrap_user_error(quantization.path, "quantizing the method"), _bodies_in_floats():
        converted = _convert(prepared, quantization.fold)
    converted = _run_passes("post_convert", converted, quantization)
    if quantization.io is not None:
        change_edges(converted, *quantization.io)
    return converted


def _quantizer(
    pt2e: Pt2e, path: DocumentPath, batches: Iterable[tuple[Any, ...]]
) -> tuple[Quantizer, tuple[Limits, ...]]:
    """The quantizers of the manifest as one, and what each of them may quantize."""
    quantizers, found = [], []
    for index, entry in enumerate(pt2e.quantizers):
        entry_path = (*path, "quantizers", index)
        backend = backends.get(entry.backend)

        def load(reference: str, entry_path: DocumentPath = entry_path) -> Any:
            return load_callable(reference, (*entry_path, "options", "factory"))

        making = f"making the quantizer of `{entry.backend}`"
        with wrap_user_error(entry_path, making), backends.options_at((*entry_path, "options")):
            context = backends.QuantizerContext(pt2e.qat is not None, load)
            is_built_in = isinstance(backend, BuiltInBackend)
            own = {name: value for name, value in entry.options.items() if not is_built_in or name != "operators"}
            quantizer = backend.create_quantizer(own, context)
        if not isinstance(quantizer, Quantizer):
            message = f"the quantizer of `{entry.backend}` is {type(quantizer).__name__}, not a Quantizer"
            raise BuildError.at(entry_path, message)
        limits = Limits.of_options(entry.options if is_built_in else {}, (*entry_path, "options"))
        quantizers.append(confine(quantizer, limits, batches))
        found.append(limits)
    return quantizers[0] if len(quantizers) == 1 else ComposableQuantizer(quantizers), tuple(found)


@contextmanager
def _bodies_in_floats() -> Iterator[None]:
    """A context in which torchao leaves the bodies of loops as they are. There, weights are inputs: a program would
    quantize them in each round. It leaves the branches of `cond` in any case."""
    with (
        replaced(quantize_pt2e, "prepare_pt2e", lambda model, *_: model),
        replaced(quantize_pt2e, "convert_pt2e", lambda model, **_: model),
    ):
        yield


def _run_passes(hook: str, graph_module: GraphModule, quantization: Quantization) -> GraphModule:
    for call in quantization.passes[hook]:
        with wrap_user_error(call.path, call.name):
            graph_module = call.function(graph_module)
        if not isinstance(graph_module, GraphModule):
            message = f"{call.name} returned {type(graph_module).__name__}, not a torch.fx.GraphModule"
            raise BuildError.at(call.path, message)
    return graph_module


@contextmanager
def _restoring(prepared: GraphModule, written: set[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Restores the content of the named buffers on exit. The context has their content."""
    before = {name: buffer.clone() for name, buffer in prepared.named_buffers() if name in written}
    yield before
    with torch.no_grad():
        for name, buffer in prepared.named_buffers():
            if name in before:
                buffer.copy_(before[name])


def _calibrate(prepared: GraphModule, calibration_batches: Batches) -> None:
    with torch.no_grad():
        for index, batch in enumerate(calibration_batches.batches):
            with wrap_user_error(calibration_batches.path, f"running the method on batch {index} of its calibration"):
                prepared(*batch)


def _check_prepared(prepared: GraphModule, path: DocumentPath) -> None:
    """Fails if no operator would be quantized, or if a weight would be quantized twice.

    The method would silently stay in fp32, or the weight would become larger than the one that torchao made.
    """
    graphs = [module.graph for module in prepared.modules() if isinstance(module, GraphModule)]
    if not any(graph.find_nodes(op="call_module") for graph in graphs):  # observers are modules
        message = "the quantizers select no operator of the method, so nothing is quantized"
        hint = "change their options, such as `modules`, or write `quantize: null` for this method"
        raise BuildError.at(path, message, hint)
    twice = [
        str(node.args[0].target).partition("parametrizations.")[0].removesuffix(".") or "the module"
        for node in prepared.graph.find_nodes(op="call_function", target=torch.ops.torchao.dequantize_affine.default)
        if node.args[0].op == "get_attr" and any(user.op == "call_module" for user in node.users)
    ]
    if twice:
        message = f"`{twice[0]}` is quantized twice: the quantizers select a layer that `torchao` has quantized"
        hint = "exclude it from one of them, for example with the quantizer's option `leave_out`"
        raise BuildError.at(path, message, hint)


def _first_results(graph_module: GraphModule, quantization: Quantization, written: set[str]) -> dict[str, torch.Tensor]:
    """What a method computes for its first batch: see `first_call.results`. Empty if the method is trained."""
    batch = next(iter(_batches(quantization.finds)), ())
    if not batch or isinstance(quantization.finds, UserCallable):
        return {}
    running = wrap_user_error(quantization.finds.path, "running the method on batch 0 of its calibration")
    with _restoring(graph_module, written) as before, running:
        return first_call.results(graph_module, batch, before)


def _check_finite(prepared: GraphModule, path: DocumentPath) -> None:
    """Fails if a weight that would be quantized has elements that are NaN or infinite: no scale fits them."""
    observed = {
        str(node.target)
        for node in prepared.graph.find_nodes(op="get_attr")
        if any(user.op == "call_module" for user in node.users)
    }
    for name, tensor in sorted(named_tensors(prepared).items()):
        if name in observed and not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            message = f"`{name}` cannot be quantized: {count:,} of {tensor.numel():,} elements are NaN or infinite"
            hint = "find their cause, such as a step of the training, or exclude the layer with `leave_out`"
            raise BuildError.at(path, message, hint)


def _check_trainable(prepared: GraphModule, path: DocumentPath) -> None:
    """Fails if the quantizers support only calibration.

    Such quantizers insert observers, which have no effect on training: it would not adapt weights to quantization.
    """
    kinds = {
        type(module).__name__: isinstance(module, FakeQuantizeBase)
        for module in prepared.children()
        if isinstance(module, (FakeQuantizeBase, ObserverBase))
    }
    if kinds and not any(kinds.values()):
        message = f"the quantizers are for calibration, not for training: they use {', '.join(sorted(kinds))}"
        hint = "use quantizers for training: `quantizers: [xnnpack]`, or your own recipe with `is_qat`"
        raise BuildError.at(path, message, hint)


def _train(prepared: GraphModule, train: UserCallable) -> None:
    for parameter in prepared.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    with wrap_user_error(train.path, train.name), torch.enable_grad():
        allow_exported_model_train_eval(prepared)
        move_exported_model_to_train(prepared)
        train.function(prepared)
        move_exported_model_to_eval(prepared)
    for parameter in prepared.parameters():
        parameter.requires_grad_(False)


def _convert(prepared: GraphModule, fold: bool) -> GraphModule:
    """Runs `convert_pt2e`, and names new tensors after the weights that they come from.

    `convert_pt2e` numbers these tensors: two methods could have different weights with the same name, and patterns of
    tags could not match them.

    Args:
        prepared: The graph module.
        fold: Whether to store weights quantized; otherwise an operator in the graph quantizes them.
    """
    converted = convert_pt2e(prepared, fold_quantize=False)
    names = {}
    for node in converted.graph.nodes:
        weight = _quantized_weight(node)
        if weight is not None:
            names[node.name] = weight
            _rename_parameters(converted, node, weight)
    if fold:
        changes = changing(converted.graph)
        with _restoring(converted, {name for name, _ in converted.named_buffers()}):  # it runs what writes
            constant_fold(converted, lambda node: _is_quantize(node) and node not in changes)
    for node in list(converted.graph.find_nodes(op="get_attr")):
        if node.name in names:
            _rename(converted, node, f"{names[node.name]}_quantized")
    _remove_unread(converted)
    converted.recompile()
    return converted


def _is_quantize(node: Node) -> bool:
    """Whether a node quantizes a tensor. Weights that torchao has quantized are only dequantized in the graph."""
    return node.op == "call_function" and node.target.__name__.partition(".")[0] in _QUANTIZE_WEIGHT


def _quantized_weight(node: Node) -> str | None:
    """The name of the weight that a node quantizes; None if the node does something else."""
    source = node.args[0] if _is_quantize(node) else None
    return str(source.target) if isinstance(source, Node) and source.op == "get_attr" else None


def _rename_parameters(graph_module: GraphModule, node: Node, weight: str) -> None:
    """Names the scales and zero points of a weight after the weight."""
    for argument, name in zip(node.args[1:3], ("scale", "zero_point"), strict=False):
        if isinstance(argument, Node) and argument.op == "get_attr" and str(argument.target).startswith("_"):
            _rename(graph_module, argument, f"{weight}_{name}")


def _rename(graph_module: GraphModule, node: Node, name: str) -> None:
    """Renames the tensor that a `get_attr` node reads, in all nodes that read the tensor.

    If a tensor of the same content has the new name, it takes the place; if another one has it, a number is appended.
    """
    old_name, value = str(node.target), attribute(graph_module, str(node.target))
    number = 1
    new_name = name
    while (other := attribute(graph_module, new_name)) is not None and not _is_same(other, value):
        number += 1
        new_name = f"{name}_{number}"
    if other is None:
        prefix, _, leaf = new_name.rpartition(".")
        graph_module.get_submodule(prefix).register_buffer(leaf, value)
    for reader in graph_module.graph.find_nodes(op="get_attr"):
        if reader.target == old_name:
            reader.target = new_name
    _delete(graph_module, old_name)


def _is_same(one: Any, other: torch.Tensor) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)


def _delete(graph_module: GraphModule, name: str) -> None:
    prefix, _, leaf = name.rpartition(".")
    delattr(graph_module.get_submodule(prefix), leaf)


def _remove_unread(graph_module: GraphModule) -> None:
    """Removes tensors that neither the graph nor a branch or loop of it reads, such as the original weights: an export
    would keep them."""
    read_names = {
        f"{name}.{node.target}".removeprefix(".")
        for name, module in graph_module.named_modules(remove_duplicate=False)
        if isinstance(module, GraphModule)
        for node in module.graph.find_nodes(op="get_attr")
    }
    for name in named_tensors(graph_module):
        if name not in read_names:
            _delete(graph_module, name)
