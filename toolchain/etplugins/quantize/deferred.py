"""Quantizes weights when a checkpoint is read, and not when a method is exported.

torchao quantizes each weight by itself. So a method can be exported before the content of its weights is known. Its
weights are on the device `meta`, where tensors have no content, so code that reads the content fails. For each
quantized tensor, the export has a recipe: the weight, and how torchao quantizes it. A stand-in of the same form is in
the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quant_primitives import MappingType
from torchao.quantization.quantize_.workflows.intx import intx_unpacked_to_int8_tensor as workflow
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxChooseQParamsAlgorithm

from etbuild.exception_text import summary
from etbuild.export.quantizers import CannotDefer
from etbuild.model.module import named_tensors
from etbuild.model.tensor_bytes import dtype_name
from etbuild.model.tensor_facts import Recipe
from etbuild.model.tied_weights import memory
from etbuild.patching import replaced
from etplugins.quantize.by_rows import HQQ
from etplugins.quantize.plain_linear import TURNED_FROM

_KNOWN_OPTIONS = {"mapping_type", "activation_quantization", "intx_choose_qparams_algorithm"}
"""The options of torchao's function that a recipe holds, or that do not change the result."""


class Deferred:
    """The recipes of the tensors of a quantized module whose content is computed later."""

    def __init__(self) -> None:
        self._recipes: dict[Any, tuple[Recipe, torch.Tensor]] = {}

    def recipe(self, tensor: torch.Tensor) -> Recipe | None:
        """The recipe for the content of a tensor of the module; None if the tensor has its content."""
        entry = self._recipes.get(memory(tensor))
        return None if entry is None else entry[0]

    @contextmanager
    def quantizing(self, module: torch.nn.Module) -> Iterator[None]:
        """Removes the content of a module's parameters within this context, so that torchao makes stand-ins.

        Raises:
            CannotDefer: torchao does not only quantize a weight.
        """
        names = {id(tensor): name for name, tensor in reversed([*named_tensors(module).items()])}
        empty: dict[int, torch.nn.Parameter] = {}  # by the `id` of a parameter, which several layers may share
        originals: dict[int, torch.nn.Parameter] = {}
        for layer, name, parameter in [*_parameters(module)]:
            form = torch.empty_like(parameter, device="meta")
            empty_parameter = empty.setdefault(id(parameter), torch.nn.Parameter(form, requires_grad=False))
            originals[id(empty_parameter)], layer._parameters[name] = parameter, empty_parameter
        quantize = IntxUnpackedToInt8Tensor.from_hp

        def from_hp(weight: torch.Tensor, block_size: Any, target_dtype: torch.dtype, **options: Any) -> Any:
            option_names = {name for name, value in options.items() if value is not None}
            source = getattr(weight, TURNED_FROM, weight)
            if id(source) not in originals or not option_names <= _KNOWN_OPTIONS or block_size[0] != 1:
                raise CannotDefer("torchao does more with a weight than to quantize it")
            recipe = {
                "weight": names[id(originals[id(source)])],
                **({} if source is weight else {"turned": True}),
                "block_size": list(block_size),
                "dtype": dtype_name(target_dtype),
                "mapping": options.get("mapping_type", MappingType.SYMMETRIC).name,
                "algorithm": IntxChooseQParamsAlgorithm(options["intx_choose_qparams_algorithm"]).value,
            }
            return self._stand_ins(functools.partial(quantize, **options), weight, block_size, target_dtype, recipe)

        try:
            with replaced(IntxUnpackedToInt8Tensor, "from_hp", staticmethod(from_hp)):
                yield
        except Exception as error:  # the errors of operators for a tensor without content have no common class
            raise CannotDefer(summary(error)) from error
        for layer, name, parameter in [*_parameters(module)]:
            if parameter.is_meta:
                if id(parameter) not in originals:
                    raise CannotDefer("torchao makes another tensor from a weight")
                layer._parameters[name] = originals[id(parameter)]

    def _stand_ins(
        self, quantize: Any, weight: torch.Tensor, block_size: Any, dtype: torch.dtype, recipe: Recipe
    ) -> Any:
        """A quantized weight with stand-ins for its parts. A part that is zeros in a quantized sample gets zeros;
        `from_recipe.quantized` checks this later."""
        size = (2, *weight.shape[1:])
        sample = torch.linspace(0.1, 1, torch.Size(size).numel()).view(size).to(weight.dtype)
        with replaced(workflow, HQQ, functools.partial(getattr(workflow, HQQ), early_stop_tol=_NoTolerance())):
            form, sample = quantize(weight, block_size, dtype), quantize(sample, block_size, dtype)
        tensors = {}
        for name in form.tensor_data_names:
            zeros = not getattr(sample, name).any()
            part = getattr(form, name)
            tensors[name] = torch.zeros(part.shape, dtype=part.dtype) if zeros else _stand_in(part)
            if not zeros:  # also keeps the stand-in in memory, so that no other tensor gets its `id`
                self._recipes[memory(tensors[name])] = {**recipe, "part": name}, tensors[name]
        return type(form)(**tensors, **{name: getattr(form, name) for name in form.tensor_attribute_names})


class _NoTolerance:
    """Replaces the tolerance of HQQ, which then stops after one round and reads no content."""

    def __gt__(self, change: object) -> bool:
        return True


def _parameters(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Parameter]]:
    for layer in module.modules():
        yield from ((layer, name, parameter) for name, parameter in layer._parameters.items() if parameter is not None)


def _stand_in(form: torch.Tensor) -> torch.Tensor:
    """A stand-in of the same dtype and shape, with small numbers that every dtype of weights can hold."""
    pattern = torch.arange(1, 8) if not form.is_floating_point() else torch.arange(1, 8) / 256
    count = form.numel()
    return pattern.to(form.dtype).repeat(-(-count // 7))[:count].clone().view(form.shape)
