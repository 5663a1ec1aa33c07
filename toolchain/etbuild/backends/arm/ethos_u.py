"""Ethos-U: Arm's NPUs, with the compiler Vela."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from etbuild.backends.arm.common import DISTRIBUTIONS, TOSA_TOOLS, configured, own_options, with_common_options
from etbuild.backends.backend import BuiltInBackend, Context, Options, Partitioners, QuantizerContext
from etbuild.backends.needs import extra


class EthosU(BuiltInBackend):
    """The backend `ethos-u`."""

    name = "ethos-u"
    separable = True
    delegate_id = "EthosUBackend"
    needs = (extra("ethos-u", "Arm's compiler Vela", "ethosu"), TOSA_TOOLS)
    distributions = DISTRIBUTIONS
    loaded_marker = "executorch.backends.arm.arm_vela"
    same_options = ("target",)

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's EthosUPartitioner with the options of `backend-ethos-u.schema.json`."""
        from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner

        return EthosUPartitioner(with_common_options(EthosUCompileSpec(**own_options(options)), options))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's EthosUQuantizer with the options of `quantizer-ethos-u.schema.json`."""
        from executorch.backends.arm.ethosu import EthosUCompileSpec
        from executorch.backends.arm.quantizer import EthosUQuantizer

        return configured(EthosUQuantizer(EthosUCompileSpec(options["target"])), options, context.qat)

    def lowering_context(self, partitioners: Partitioners) -> AbstractContextManager[None]:
        """Returns a context that shows Vela's messages, thirty lines for each delegate, only if it fails."""
        return _messages_of_failures()


@contextlib.contextmanager
def _messages_of_failures() -> Iterator[None]:
    from executorch.backends.arm import arm_vela

    from etbuild.patching import replaced
    from etbuild.processes.library_output import shown_if_it_fails

    if not arm_vela.has_vela:  # another of Arm's backends imported the module
        yield
        return
    main = arm_vela.vela.main

    def quiet_main(arguments: list[str]) -> Any:
        with shown_if_it_fails():
            return main(arguments)

    with replaced(arm_vela.vela, "main", quiet_main):
        yield
