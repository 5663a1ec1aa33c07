"""The section `dtype` of a model in a manifest: its checks, and its form in plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from etbuild.errors import Problem
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest

_DTYPE = ("model", "dtype")


class PrecisionSection(Section):
    """Methods that compute in 16-bit floats."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems of methods that cannot compute in another dtype than the model's."""
        model: Any = manifest.get("model", {})
        if "adapters" in model:
            message = "adapters of LoRA do not go with `compute`: their files hold float32"
            yield Problem(message, (*_DTYPE, "compute"), "write `dtype: float16`, or merge the adapter", at_key=True)
        defaults = manifest.get("defaults", {}).get("quantize")
        for name, method in manifest.get("methods", {}).items():
            if "program" in method:
                message = f"`program` of the method `{name}` does not go with `compute`: it has no model in float32"
                yield Problem(message, ("methods", name, "program"), "build it from a manifest of its own")
            if method.get("quantize", defaults):
                message = f"`quantize` of the method `{name}` does not go with `compute`"
                yield Problem(message, ("methods", name), "use one of them, for example in a variant of its own")

    def normalized(self, manifest: Manifest) -> Manifest:
        """The manifest with the form of plans: the module is made in the dtype of the inputs."""
        model: Any = manifest["model"]
        precision = {"keep": {}, **model["dtype"]}
        model = {**model, "dtype": "float32", "precision": precision}
        return cast("Manifest", {**manifest, "model": model})
