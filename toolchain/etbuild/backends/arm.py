"""Arm: Ethos-U NPUs, by the compiler Vela; TOSA graphs; VGF for the ML extensions for Vulkan."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from etbuild.backends.backend import Context, Need, Options, Partitioners
from etbuild.backends.needs import extra

VELA = extra("ethos-u", "Arm's compiler Vela", "ethosu")
TOSA = extra("ethos-u", "Arm's tosa-tools", "tosa_serializer")
_CONVERTER = "MODEL_CONVERTER_PATH"  # where ExecuTorch looks first


def create_ethos_u(options: Options, context: Context) -> Any:
    """ExecuTorch's EthosUPartitioner with the options of `backend-ethos-u.schema.json`."""
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner

    del context
    return EthosUPartitioner(_finish(EthosUCompileSpec(**_without_common(options)), options))


@contextlib.contextmanager
def around_ethos_u(partitioners: Partitioners) -> Iterator[None]:
    """Inside, what Vela prints, thirty lines for each delegate, is shown where it fails."""
    from executorch.backends.arm import arm_vela

    from etbuild.patching import replaced
    from etbuild.processes.library_output import shown_if_it_fails

    del partitioners
    if not arm_vela.has_vela:  # what was imported is another of Arm's backends
        yield
        return
    main = arm_vela.vela.main

    def quiet_main(arguments: list[str]) -> Any:
        with shown_if_it_fails():
            return main(arguments)

    with replaced(arm_vela.vela, "main", quiet_main):
        yield


def create_tosa(options: Options, context: Context) -> Any:
    """ExecuTorch's TOSAPartitioner with the options of `backend-tosa.schema.json`."""
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

    del context
    return TOSAPartitioner(_finish(TosaCompileSpec(options.get("tosa_spec", "TOSA-1.0+FP")), options))


def create_vgf(options: Options, context: Context) -> Any:
    """ExecuTorch's VgfPartitioner with the options of `backend-vgf.schema.json`."""
    from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner

    del context
    os.environ.setdefault(_CONVERTER, str(_converter()))
    return VgfPartitioner(_finish(VgfCompileSpec(**_without_common(options)), options))


_COMMON = ("passes", "preserve_io_quantization")


def _without_common(options: Options) -> Options:
    return {name: value for name, value in options.items() if name not in _COMMON}


def _finish(spec: Any, options: Options) -> Any:
    """Sets what all three have."""
    from executorch.backends.arm.common.pipeline_config import ArmPassPipelineConfig

    if options.get("preserve_io_quantization"):
        spec._set_preserve_io_quantization(True)
    if "passes" in options:
        wanted = spec._get_pass_pipeline_config().to_dict()
        chosen = {name: value.upper() if isinstance(value, str) else value for name, value in options["passes"].items()}
        spec.set_pass_pipeline_config(ArmPassPipelineConfig.from_dict({**wanted, **chosen}))
    return spec


def _converter() -> Path:
    """The converter that a user names, or the one that the extra `vgf` brings."""
    if os.environ.get(_CONVERTER):
        return Path(os.environ[_CONVERTER])
    found = importlib.util.find_spec("model_converter")
    places = found.submodule_search_locations if found else None
    return Path(*(places or [os.devnull])[:1], "binaries", "bin", "model-converter")


def _converter_runs() -> bool:
    if not _converter().is_file():
        return False
    try:
        return subprocess.run([_converter(), "--version"], capture_output=True, check=False).returncode == 0
    except OSError:  # it is no program
        return False


CONVERTER = Need(
    "Arm's model converter in a form that runs on this system",
    "install it so: pip install 'etbuild[vgf]', on a system with glibc 2.38 or later; "
    f"or set {_CONVERTER} to one that runs",
    _converter_runs,
)


def create_ethos_u_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's EthosUQuantizer with the options of `quantizer-ethos-u.schema.json`, and `qat`."""
    from executorch.backends.arm.ethosu import EthosUCompileSpec
    from executorch.backends.arm.quantizer import EthosUQuantizer

    del load_callable
    return _configure(EthosUQuantizer(EthosUCompileSpec(options["target"])), options)


def create_tosa_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's TOSAQuantizer with the options of `quantizer-tosa.schema.json`, and `qat`."""
    from executorch.backends.arm.quantizer import TOSAQuantizer
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec

    del load_callable
    return _configure(TOSAQuantizer(TosaCompileSpec(options.get("tosa_spec", "TOSA-1.0+INT"))), options)


def create_vgf_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's VgfQuantizer with the options of `quantizer-vgf.schema.json`, and `qat`."""
    from executorch.backends.arm.quantizer import VgfQuantizer
    from executorch.backends.arm.vgf import VgfCompileSpec

    del load_callable
    return _configure(VgfQuantizer(VgfCompileSpec(options.get("tosa_spec"))), options)


def _configure(quantizer: Any, options: Options) -> Any:
    from executorch.backends.arm.quantizer import (
        get_symmetric_a16w8_quantization_config,
        get_symmetric_quantization_config,
    )

    chosen = {
        "is_per_channel": options.get("per_channel", True),
        "is_qat": options["qat"],
        "is_dynamic": options.get("dynamic", False),
    }
    if options.get("activations") == "int16":
        config = get_symmetric_a16w8_quantization_config(**chosen)
    elif options.get("weights") == "int4":
        config = get_symmetric_quantization_config(**chosen, weight_qmin=-7, weight_qmax=7)
    else:
        config = get_symmetric_quantization_config(**chosen)
    for name in options.get("modules", []):
        quantizer.set_module_name(name, config)
    for name in options.get("leave_out", []):
        quantizer.set_module_name(name, None)
    return quantizer if "modules" in options else quantizer.set_global(config)
