"""Quantizes the weights of a module for each of its methods, as the manifest or an export recipe says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from etbuild.errors import InputError
from etbuild.export.quantizers import QuantizedModules as _Asked
from etbuild.files.digests import digest
from etbuild.model.tensor_facts import Recipe
from etbuild.plan.parts import ExportMethod
from etbuild.plan.step_plans import ExportPlan
from etplugins.quantize.deferred import Deferred
from etplugins.quantize.parts import Quantize
from etplugins.quantize.torchao_weights import Quantized, kept_weights, quantize_weights

_BY_RECIPE = "recipe"


class QuantizedModules(_Asked):
    """The module with the quantized weights of each method. Weights are quantized once for all methods that quantize
    them in the same way, so that these methods still share them."""

    def __init__(self, module: torch.nn.Module, export_plan: ExportPlan, free: bool, deferred: bool) -> None:
        self._module, self._plan = module, export_plan
        self._deferred = Deferred() if deferred else None
        self._schemes = {name: _scheme_of(method) for name, method in export_plan.methods.items()}
        of_module = {self._schemes[name] for name, method in export_plan.methods.items() if method.program is None}
        self._free = free and len(of_module) == 1
        self._quantized: dict[str, Quantized | None] = {}

    def module_for(self, method: str) -> Quantized | None:
        """The module with the quantized weights of a method; None if the weights of the method are not quantized."""
        scheme = self._schemes[method]
        if scheme is not None and scheme not in self._quantized:
            made = self._quantize_by_recipe() if scheme == _BY_RECIPE else self._quantize(method, scheme)
            self._quantized[scheme] = made
        return None if scheme is None else self._quantized[scheme]

    def recipe_of(self, tensor: torch.Tensor) -> Recipe | None:
        """The recipe that computes the content of a tensor from a weight; None if the tensor has its content."""
        return None if self._deferred is None else self._deferred.recipe(tensor)

    @staticmethod
    def kept_weights(
        module: torch.nn.Module, export_plan: ExportPlan, packed: bool, floats: bool
    ) -> tuple[dict[str, str], set[str]]:
        """The weights of a packed checkpoint whose integers methods keep, and the weights that no method reads as
        floats."""
        methods = {name: method for name, method in export_plan.methods.items() if method.program is None}
        entries = {name: _quantize_of(method).torchao for name, method in methods.items()}
        if not packed:
            keeping = ((name, index) for name, each in entries.items() for index, one in enumerate(each) if one.keeps)
            name, index = next(keeping)
            message = "`packed` keeps the integers of a packed checkpoint, and nothing says that this one is packed"
            hint = "its `config.json` would have a `quantization_config`; `8da4w` quantizes floats"
            raise InputError.at(("methods", name, "quantize", "torchao", index, "config"), message, hint)
        return kept_weights(module, [*entries.values(), *([()] if floats else [])])

    def _quantize(self, name: str, scheme: str) -> Quantized:
        torchao = _quantize_of(self._plan.methods[name]).torchao
        path = ("methods", name, "quantize", "torchao")
        called = [layer for module in self._called(scheme) for layer in module.modules()]
        return quantize_weights(self._module, torchao, path, self._free, called, self._deferred)

    def _called(self, scheme: str) -> Iterator[torch.nn.Module]:
        """The modules that methods with a scheme call, such as `embedder` for `embedder.embed`."""
        for method in [method for name, method in self._plan.methods.items() if self._schemes[name] == scheme]:
            called = self._module
            for part in method.entry.split("."):
                if (child := called._modules.get(part)) is None:
                    break
                called = child
            yield called

    def _quantize_by_recipe(self) -> Quantized | None:
        from etbuild.export.recipe import load_recipe

        assert self._plan.recipe is not None
        wanted = load_recipe(self._plan.recipe).quantization_recipe
        configs = wanted and wanted.ao_quantization_configs
        if not configs:
            return None
        changes = [(config.ao_base_config, config.filter_fn, ("recipe",)) for config in configs]
        return Quantized(self._module, changes, ("recipe",), self._free)


def _quantize_of(method: ExportMethod) -> Quantize:
    """How the manifest quantizes a method."""
    return Quantize() if method.quantize is None else cast("Quantize", method.quantize)


def _scheme_of(method: ExportMethod) -> str | None:
    """A key that is equal for methods whose weights are quantized in the same way; None if they are not quantized."""
    torchao, pt2e = _quantize_of(method).torchao, _quantize_of(method).pt2e
    # A `pt2e` without quantizers lets the recipe decide what is quantized.
    if "quantize" in method.from_recipe or (not torchao and pt2e is not None and not pt2e.quantizers):
        return _BY_RECIPE
    return digest([entry.to_json() for entry in torchao]) if torchao else None
