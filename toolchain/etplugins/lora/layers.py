"""Gives the layers of a module LoRA adapters, which a method may compute with.

A layer `LAYER` gets a child for each adapter, with the weights `LAYER.adapters.NAME.lora_A` and `lora_B`. They are
stand-ins, so that exporting and lowering do not depend on the weights. `emission` replaces the stand-ins when the
program is written.

The arithmetic follows PEFT (https://huggingface.co/docs/peft): an adapter computes in float32.
"""

from __future__ import annotations

import hashlib
import inspect
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.inputs.given import Given
from etbuild.plan.step_plans import ExportPlan
from etplugins.lora import config as configuration
from etplugins.lora.config import ALL_LINEAR, AdapterConfig
from etplugins.lora.parts import OF_LAYER

FACTORS = ("lora_A", "lora_B")
_SMALL = 1024  # the largest rank that a layer of any size may have


class LoraAdapter(torch.nn.Module):  # type: ignore[misc]
    """A LoRA adapter of a linear layer.

    Its weights are buffers outside the state dict, because the checkpoint of the module does not hold them.

    Attributes:
        lora_A: float32 [rank, inputs].
        lora_B: float32 [outputs, rank].
        factor: The factor of the adapter's output.
    """

    lora_A: torch.Tensor  # noqa: N815 - PEFT's name
    lora_B: torch.Tensor  # noqa: N815 - as above

    def __init__(self, name: str, shapes: tuple[tuple[int, int], tuple[int, int]], factor: float) -> None:
        """Makes an adapter with stand-ins for its weights.

        Args:
            name: The name of the adapter in the whole module.
            shapes: The shapes of `lora_A` and `lora_B`.
            factor: The factor of the adapter's output.
        """
        super().__init__()
        for weight_name, (rows, columns) in zip(FACTORS, shapes, strict=True):
            content = stand_in(f"{name}.{weight_name}", rows * columns).view(rows, columns)
            self.register_buffer(weight_name, content, persistent=False)
        self.factor = factor

    def forward(self, inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """The output of the layer with the adapter, [..., outputs].

        Args:
            inputs: The inputs of the layer, [..., inputs].
            outputs: The output of the layer without the adapter, [..., outputs].
        """
        inner = torch.nn.functional.linear(inputs.to(self.lora_A.dtype), self.lora_A)
        return (outputs + torch.nn.functional.linear(inner, self.lora_B) * self.factor).to(outputs.dtype)


def stand_in(name: str, size: int) -> torch.Tensor:
    """The content of an adapter's weight before the program is written, float32 [size].

    It comes from the digest of the name, so that no other weight has it. An element is one of 2**30 numbers.

    Args:
        name: The name of the weight in the module.
        size: The number of its elements.
    """
    words = struct.unpack(">8I", hashlib.sha256(name.encode()).digest())[:size]
    # The digest gives the sign, the fraction and six bits of the exponent. All such numbers are finite.
    bits = [word & 0x807FFFFF | (96 + (word >> 23 & 63)) << 23 for word in words]
    content = torch.zeros(size)
    content[: len(bits)] = torch.tensor(bits).to(torch.int32).view(torch.float32)
    return content


def attach(module: torch.nn.Module, export_plan: ExportPlan, inputs: Given) -> None:
    """Gives the layers of a module all adapters of a plan. No method computes with them outside of `applied`.

    Args:
        module: The module. It is changed in place.
        export_plan: The export plan.
        inputs: The declared inputs, which contain the configurations of the adapters.

    Raises:
        InputError: A configuration cannot be read, asks for something that the driver cannot do, or does not fit the
            module.
    """
    layers = dict(module.named_modules())
    problems: list[Problem] = []
    adapters: dict[str, tuple[dict[str, torch.nn.Module], AdapterConfig]] = {}
    for name, file in export_plan.adapters.items():
        path: DocumentPath = ("model", "adapters", name, "config")
        if hasattr(torch.nn.ModuleDict, name):
            message = f"`{name}` cannot be the name of an adapter: PyTorch's modules have an attribute `{name}`"
            problems.append(Problem(message, ("model", "adapters", name), "choose another name", at_key=True))
            continue
        config = configuration.read(file, path, inputs)
        changed = {layer: layers[layer] for layer in config.changed_layers(layers, file, path)}
        if config.targets == ALL_LINEAR:
            changed = {layer: child for layer, child in changed.items() if _in_all_linear(module, child)}
        other_layers = [layer for layer, child in changed.items() if _sizes(child) is None]
        if other_layers:
            kind = type(layers[other_layers[0]]).__name__
            message = f"`target_modules` of `{file}` names `{other_layers[0]}`, which is of the class {kind}"
            problems.append(Problem(message, path, "an adapter can only change linear layers"))
        elif not changed:
            targets = [config.targets] if isinstance(config.targets, str) else config.targets
            ends = {layer.rpartition(".")[2] for layer, child in layers.items() if _sizes(child)}
            message = f"no layer of the module is one of the `target_modules` of `{file}`: {', '.join(targets)}"
            problems.append(Problem(message, path, did_you_mean(targets[0], ends) or "is it an adapter of this model?"))
        else:
            problems += [*_too_large(changed, config, file, path), *_reached_twice(changed, module, path)]
            adapters[name] = changed, config
    InputError.raise_if(problems)
    for name, (changed, config) in adapters.items():
        for layer, child in changed.items():
            _attach(layer, child, name, config)


def _too_large(
    layers: Mapping[str, torch.nn.Module], config: AdapterConfig, file: str, path: DocumentPath
) -> Iterator[Problem]:
    """The problems of layers whose adapters would be much larger than the layers: no training makes such adapters."""
    for layer, child in layers.items():
        inputs, outputs = _sizes(child) or (0, 0)
        rank = config.rank_of(layer)
        if rank > max(inputs, outputs, _SMALL):
            message = (
                f"`{file}` gives `{layer}` the rank {rank}, and the layer has {inputs} inputs and {outputs} outputs"
            )
            yield Problem(message, path, "is it an adapter of this model?")


def _reached_twice(
    layers: Mapping[str, torch.nn.Module], module: torch.nn.Module, path: DocumentPath
) -> Iterator[Problem]:
    """The problems of layers with several names. PEFT replaces a layer only under its first name: under another name,
    the module would compute without the adapter."""
    names: dict[int, list[str]] = {}
    for name, child in module.named_modules(remove_duplicate=False):
        names.setdefault(id(child), []).append(name)
    for layer, child in layers.items():
        others = [f"`{name}`" for name in names[id(child)] if name != layer]
        if others:
            message = f"the adapter changes the layer `{layer}`, which is also called {' and '.join(others)}"
            hint = "merge such an adapter into the model with PEFT's `merge_and_unload`, or exclude the layer"
            yield Problem(message, path, hint)


def _attach(layer: str, child: torch.nn.Module, name: str, config: AdapterConfig) -> None:
    if OF_LAYER not in child._modules:
        child.add_module(OF_LAYER, torch.nn.ModuleDict())
    sizes = _sizes(child)
    assert sizes is not None
    rank = config.rank_of(layer)
    adapter = LoraAdapter(f"{layer}.{OF_LAYER}.{name}", ((rank, sizes[0]), (sizes[1], rank)), config.factor_of(layer))
    child.get_submodule(OF_LAYER).add_module(name, adapter)


def _sizes(layer: torch.nn.Module) -> tuple[int, int] | None:
    """The numbers of inputs and outputs of a linear layer; None for another layer.

    The linear layer inside PyTorch's attention does not count: the attention only reads its weights.
    """
    if isinstance(layer, torch.nn.Linear) and not isinstance(layer, NonDynamicallyQuantizableLinear):
        return layer.in_features, layer.out_features
    if f"{type(layer).__module__}.{type(layer).__name__}" == "transformers.pytorch_utils.Conv1D":  # GPT-2's class
        weight: Any = layer.weight
        return weight.shape[0], weight.shape[1]
    return None


def _in_all_linear(module: Any, layer: torch.nn.Module) -> bool:
    """Whether PEFT's `all-linear` includes a layer: all linear layers except the one for the scores."""
    scores_layer = getattr(module, "get_output_embeddings", lambda: None)()
    return _sizes(layer) is not None and layer is not scores_layer


@contextmanager
def applied(module: torch.nn.Module, method: str, name: str | None) -> Iterator[Callable[[ExportedProgram], None]]:
    """Lets the layers of a module compute with an adapter within this context. Yields a check of what is exported.

    Args:
        module: The module, after `attach`.
        method: The name of the method that is exported or called.
        name: The adapter; None for none.
    """
    layers = {} if name is None else _layers(module, name)
    hooks = [
        layer.register_forward_hook(_hook(str(name), layer_name, layer), with_kwargs=True)
        for layer_name, layer in layers.items()
    ]

    def check(program: ExportedProgram) -> None:
        if name is not None:
            _check(program, module, method, name)
        _leave_out_unused(program, module)

    try:
        yield check
    finally:
        for hook in hooks:
            hook.remove()


def _hook(name: str, layer_name: str, layer: torch.nn.Module) -> Callable[..., torch.Tensor]:
    """A hook that applies an adapter after each call of a layer. If the layer has several inputs, such as a scale, the
    adapter gets the first one, as in PEFT."""
    first = next(iter(inspect.signature(layer.forward).parameters))

    def hook(layer: Any, arguments: tuple[Any, ...], keywords: dict[str, object], outputs: Any) -> torch.Tensor:
        if not isinstance(outputs, torch.Tensor):
            message = f"the adapter `{name}` changes the layer `{layer_name}`, which returns a {type(outputs).__name__}"
            raise BuildError.at(("model", "adapters", name), message, "an adapter can only change one tensor")
        inputs = arguments[0] if arguments else keywords[first]
        result: torch.Tensor = layer.adapters[name](inputs, outputs)
        return result

    return hook


def _layers(module: torch.nn.Module, name: str) -> dict[str, torch.nn.Module]:
    """The layers that have an adapter, by name."""
    return {layer: child for layer, child in module.named_modules() if _has_adapter(child, name)}


def _has_adapter(layer: torch.nn.Module, name: str) -> bool:
    children = layer._modules.get(OF_LAYER)
    return isinstance(children, torch.nn.ModuleDict) and name in children and isinstance(children[name], LoraAdapter)


def _check(program: ExportedProgram, module: torch.nn.Module, method: str, name: str) -> None:
    """Checks that a method applies an adapter in each used layer that the adapter changes.

    Args:
        program: The exported method.
        module: The module.
        method: The name of the method.
        name: The name of the adapter.

    Raises:
        BuildError: The method uses none of the layers, or reads the weights of one without calling it.
    """
    path: DocumentPath = ("methods", method, "adapter")
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    read = {spec.target for spec in program.graph_signature.input_specs if inputs[spec.arg.name].users and spec.target}
    layers = _layers(module, name)
    without = [layer for layer in layers if f"{layer}.{OF_LAYER}.{name}.{FACTORS[0]}" not in read]
    if len(without) == len(layers):
        hint = "remove `adapter`, or choose another `entry`"
        raise BuildError.at(path, f"the method calls no layer that the adapter `{name}` changes", hint)
    unchanged = [layer for layer in without if any(_is_weight_of_layer(target, layer) for target in read)]
    if unchanged:
        message = (
            f"the method reads the weights of `{unchanged[0]}` without calling it, so that the adapter has no effect"
        )
        raise BuildError.at(path, message, "call the layer in the model's code")


def _leave_out_unused(program: ExportedProgram, module: torch.nn.Module) -> None:
    """Removes the weights of adapters that a method does not read. ExecuTorch writes unused buffers into programs.

    Args:
        program: The exported method. It is changed in place.
        module: The module.
    """
    adapter_weights = {
        f"{name}.{factor}"
        for name, child in module.named_modules()
        for factor in FACTORS
        if isinstance(child, LoraAdapter)
    }
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    specs = program.graph_signature.input_specs
    unused = [spec for spec in specs if spec.target in adapter_weights and not inputs[spec.arg.name].users]
    for spec in unused:
        program.graph.erase_node(inputs[spec.arg.name])
        program._constants.pop(str(spec.target))
    if unused:
        remaining = [spec for spec in specs if spec not in unused]
        program._graph_signature = ExportGraphSignature(remaining, program.graph_signature.output_specs)
        program.graph_module.recompile()


def _is_weight_of_layer(weight: str, layer: str) -> bool:
    """Whether a weight belongs to a layer itself, and not to one of its adapters. The weight may be quantized."""
    return weight.startswith(f"{layer}.") and not weight.startswith(f"{layer}.{OF_LAYER}.")
