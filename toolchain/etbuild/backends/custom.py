"""A partitioner, or a quantizer, from the declared sources."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Options, QuantizerContext


class Custom(BuiltInBackend):
    """The backend `custom`. The manifest names a factory; the backend that its partitioner delegates to is unknown."""

    name = "custom"
    separable = False
    takes_weight_only_linear = True
    delegates_to_any = True

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Calls the factory in the options, and returns its partitioner."""
        return context.load(options["factory"])(**options.get("kwargs", {}))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Calls the factory in the options, and returns its quantizer."""
        return context.load(options["factory"])(**options.get("kwargs", {}))

    def callables(self, options: Options) -> tuple[str, ...]:
        """Returns the factory of the partitioner."""
        return (options["factory"],)

    def quantizer_callables(self, options: Options) -> tuple[str, ...]:
        """Returns the factory of the quantizer."""
        return (options["factory"],)

    def shown_name(self, options: Options) -> str:
        """Returns the name of the factory."""
        return str(options["factory"])

    def pairs_partitions(self, options: Options) -> bool:
        """Returns the option `equal_partitions`: whether partitions of methods are paired by index."""
        return bool(options.get("equal_partitions", False))

    def grouping_key(self, options: Options) -> str:
        """Returns the factory: the driver assumes that all its partitioners are of one backend."""
        return str(options["factory"])
