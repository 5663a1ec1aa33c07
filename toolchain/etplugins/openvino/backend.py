"""OpenVINO: Intel's CPUs, GPUs and NPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Options, Partitioners, QuantizerContext
from etbuild.backends.needs import extra
from etbuild.patching import replaced
from etbuild.processes import forked
from etbuild.surroundings.library_output import native_messages_off

_FOR_THIS_MACHINE = "for_this_machine"  # an option of the manifest, and a compile spec that only the driver reads


class OpenVino(BuiltInBackend):
    """The backend `openvino`."""

    name = "openvino"
    separable = True
    delegate_id = "OpenvinoBackend"
    needs = (
        extra("openvino", "OpenVINO", "openvino"),
        extra("openvino", "OpenVINO's nncf", "nncf"),  # ExecuTorch imports it but does not require it
    )
    distributions = ("nncf", "openvino")
    loaded_marker = "executorch.backends.openvino.preprocess"
    fold_quantize = False

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's OpenvinoPartitioner with the options of `backend-openvino.schema.json`."""
        with _importing():
            from executorch.backends.openvino.partitioner import OpenvinoPartitioner
        from executorch.exir.backend.backend_details import CompileSpec

        skipped = {name: set(options[name]) for name in ("op_types_to_skip", "op_names_to_skip") if name in options}
        specs = [CompileSpec("device", options.get("device", "CPU").encode())]
        if options.get(_FOR_THIS_MACHINE, False):
            specs.append(CompileSpec(_FOR_THIS_MACHINE, b""))
        return OpenvinoPartitioner(specs, **skipped)

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's OpenVINOQuantizer with the options of `quantizer-openvino.schema.json`."""
        with _importing():
            from executorch.backends.openvino.quantizer import OpenVINOQuantizer, QuantizationMode

        return OpenVINOQuantizer(mode=QuantizationMode(options.get("mode", "int8_sym")))

    @contextmanager
    def lowering_context(self, partitioners: Partitioners) -> Iterator[None]:
        """A context in which each delegate is compiled in a child process of its own.

        OpenVINO numbers its objects, never starts again in a process, and writes the numbers to the result. A child
        that is forked from a process without OpenVINO always starts at the same number. OpenVINO also splits and fuses
        operators depending on the number of processors and their instructions. Unless the partitioner says
        `for_this_machine`, both are hidden from the child.
        """
        from executorch.backends.openvino.preprocess import OpenvinoBackend

        preprocess = OpenvinoBackend.preprocess

        def in_a_child(program: Any, specs: Any) -> Any:
            name = "compiling for OpenVINO"
            result, failure = forked.run({name: lambda: _compile(preprocess, program, specs)}, 1)[name]
            if failure is not None:
                raise RuntimeError(failure)
            return result

        with replaced(OpenvinoBackend, "preprocess", staticmethod(in_a_child)):
            yield


@contextmanager
def _importing() -> Iterator[None]:
    """Imports OpenVINO without messages, and without its telemetry, which reads a number from the home directory and
    sends it. Both work without the telemetry's package."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as if it was not
    with native_messages_off():
        yield


def _compile(preprocess: Any, program: Any, specs: Any) -> tuple[Any, str | None]:
    """Compiles a delegate. Returns the result and the text of the error, one of which is None. Changes the state of
    this process."""
    import torch

    torch.set_num_threads(1)  # a fork does not have the threads of the parent's pool
    passed_on = [spec for spec in specs if spec.key != _FOR_THIS_MACHINE]
    if len(passed_on) == len(specs):
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        return preprocess(program, passed_on), None
    except Exception as error:  # noqa: BLE001 - OpenVINO raises what it likes
        return None, f"{type(error).__name__}: {error}"
