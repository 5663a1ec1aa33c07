"""A partitioner, or a quantizer, from the declared sources."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Options, QuantizerContext


class Custom(BuiltInBackend):
    """The backend `custom`: the manifest names a factory, and nothing else is known."""

    name = "custom"
    separable = False
    takes_weight_only_linear = True
    delegates_to_any = True

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Returns what the factory in the options returns."""
        return context.load(options["factory"])(**options.get("kwargs", {}))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Returns what the factory in the options returns."""
        return context.load(options["factory"])(**options.get("kwargs", {}))

    def callables(self, options: Options) -> tuple[str, ...]:
        """Returns the factory of the partitioner."""
        return (options["factory"],)

    def quantizer_callables(self, options: Options) -> tuple[str, ...]:
        """Returns the factory of the quantizer."""
        return (options["factory"],)

    def shown_name(self, options: Options) -> str:
        """Returns the factory."""
        return str(options["factory"])

    def pairs_partitions(self, options: Options) -> bool:
        """Returns what the manifest says."""
        return bool(options.get("equal_partitions", False))

    def grouping_key(self, options: Options) -> str:
        """Returns the factory: its partitioners are taken for one backend's. Those of two factories need not be."""
        return str(options["factory"])
