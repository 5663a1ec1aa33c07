"""OpenVINO: Intel's CPUs, GPUs and NPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from etbuild.backends.backend import Context, Options, Partitioners
from etbuild.backends.needs import extra

OPENVINO = extra("openvino", "OpenVINO", "openvino")
NNCF = extra("openvino", "OpenVINO's nncf", "nncf")  # imported with ExecuTorch's backend, which asks for it nowhere
_FOR_THIS_MACHINE = "for_this_machine"  # an option, and ours among the compile specs of its delegates


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's OpenvinoPartitioner with the options of `backend-openvino.schema.json`."""
    from etbuild.processes.library_output import native_messages_off

    with native_messages_off():  # of the tokenizers that it imports
        from executorch.backends.openvino.partitioner import OpenvinoPartitioner
    from executorch.exir.backend.backend_details import CompileSpec

    del context
    skipped = {name: set(options[name]) for name in ("op_types_to_skip", "op_names_to_skip") if name in options}
    specs = [CompileSpec("device", options.get("device", "CPU").encode())]
    if options.get(_FOR_THIS_MACHINE, False):
        specs.append(CompileSpec(_FOR_THIS_MACHINE, b""))
    return OpenvinoPartitioner(specs, **skipped)


@contextlib.contextmanager
def around(partitioners: Partitioners) -> Iterator[None]:
    """Inside, each delegate is compiled in a child process of its own.

    OpenVINO numbers what it makes for as long as its process lives, and the numbers are in what it writes. A child that
    starts as a copy of a process without OpenVINO begins at the same number each time. Nor does the child see how many
    processors there are and which instructions they have, for which OpenVINO would divide and fuse operators, unless
    the partitioner says `for_this_machine`.
    """
    from executorch.backends.openvino.preprocess import OpenvinoBackend

    from etbuild.patching import replaced
    from etbuild.processes import forked

    del partitioners
    preprocess = OpenvinoBackend.preprocess

    def in_a_child(program: Any, specs: Any) -> Any:
        name = "compiling for OpenVINO"
        result, failure = forked.run({name: lambda: _compile(preprocess, program, specs)}, 1)[name]
        if failure is not None:
            raise RuntimeError(failure)
        return result

    with replaced(OpenvinoBackend, "preprocess", staticmethod(in_a_child)):
        yield


def _compile(preprocess: Any, program: Any, specs: Any) -> tuple[Any, str | None]:
    """What OpenVINO makes of a delegate, or what it says. Changes this process."""
    import torch

    torch.set_num_threads(1)  # threads of a pool from before the fork are not there
    own = [spec for spec in specs if spec.key != _FOR_THIS_MACHINE]
    if len(own) == len(specs):
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        return preprocess(program, own), None
    except Exception as error:  # noqa: BLE001 - OpenVINO raises what it likes
        return None, f"{type(error).__name__}: {error}"


def create_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's OpenVINOQuantizer with the options of `quantizer-openvino.schema.json`."""
    from etbuild.processes.library_output import native_messages_off

    with native_messages_off():
        from executorch.backends.openvino.quantizer import OpenVINOQuantizer, QuantizationMode

    del load_callable
    return OpenVINOQuantizer(mode=QuantizationMode(options.get("mode", "int8_sym")))
