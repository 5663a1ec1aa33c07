"""Arm's reference model of TOSA: it runs the graphs from which Arm's compilers make delegates, on any machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from executorch.backends.arm import arm_vela
from executorch.backends.arm.ethosu import EthosUCompileSpec
from executorch.backends.arm.ethosu.backend import EthosUBackend
from executorch.backends.arm.test.runner_utils import TosaReferenceModelDispatch
from executorch.backends.arm.tosa.backend import TOSABackend
from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
from executorch.backends.arm.vgf import VgfCompileSpec
from executorch.backends.arm.vgf.backend import VgfBackend
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule

from etbuild.patching import replaced

NAME = "Arm's reference model"
"""What it is, for notes."""
_SPECS = {"EthosUBackend": EthosUCompileSpec, "TOSABackend": TosaCompileSpec, "VgfBackend": VgfCompileSpec}


@contextmanager
def lowering() -> Iterator[None]:
    """A context in which lowered delegates are TOSA graphs. Neither Vela nor the model converter compiles them."""
    name = "_compile_tosa_flatbuffer"
    result = getattr(arm_vela, "VelaCompileResult", bytes)  # before release 1.5, Vela's result is bytes
    with (
        replaced(EthosUBackend, name, staticmethod(lambda graph, *_: result(graph))),
        replaced(VgfBackend, name, staticmethod(lambda graph, *_: graph)),
    ):
        yield


@contextmanager
def running() -> Iterator[None]:
    """A context in which PyTorch runs lowered methods, and the reference model their delegates that are TOSA graphs.

    Raises:
        AssertionError: A graph is not valid.
        ArithmeticError: It computes what TOSA leaves open, such as a sum of integers that overflows.
    """
    import tosa_reference_model

    run = tosa_reference_model.run

    def checked(*arguments: Any, **options: Any) -> Any:
        outputs, status = run(*arguments, **options)
        if status == tosa_reference_model.GraphStatus.TOSA_UNPREDICTABLE:
            raise ArithmeticError("TOSA leaves open what these numbers give")
        return outputs, status

    with replaced(tosa_reference_model, "run", checked), _Delegates():
        yield


class _Delegates(TosaReferenceModelDispatch):  # type: ignore[misc] # ExecuTorch has no types
    """ExecuTorch's own, for delegates of all three backends."""

    def __init__(self) -> None:
        super().__init__()
        self.ran_tosa_dispatch = True  # a method may have no such delegate

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is executorch_call_delegate:
            delegate, *inputs = args
            if delegate.backend_id in _SPECS:
                return self._tosa_dispatch(_of_tosa(delegate), inputs)
            return func(*args)
        return super().__torch_function__(func, types, args, kwargs)


def _of_tosa(delegate: LoweredBackendModule) -> LoweredBackendModule:
    """The same delegate as one of the backend `tosa`."""
    own = _SPECS[delegate.backend_id]._from_list(delegate.compile_specs)
    specs = (own if isinstance(own, TosaCompileSpec) else TOSABackend.filter_tosa_compile_specs(own))._to_list()
    return LoweredBackendModule(delegate.original_module, "TOSABackend", delegate.processed_bytes, specs)
