"""Arm: Ethos-U NPUs, TOSA graphs, and VGF for the ML extensions for Vulkan."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Need, Options, Partitioners, QuantizerContext
from etbuild.backends.needs import extra
from etbuild.errors import Problem
from etbuild.extras import install_hint

_TOSA_TOOLS = extra("ethos-u", "Arm's tosa-tools", "tosa_serializer")
_DISTRIBUTIONS = ("ethos-u-vela", "ml-dtypes", "tosa-tools")
_COMMON = ("passes", "preserve_io_quantization")
_CONVERTER = "MODEL_CONVERTER_PATH"  # the environment variable in which ExecuTorch looks first


def _converter() -> Path:
    """Returns the path of the converter: the one that the user names, or the one that the extra `vgf` installs."""
    if os.environ.get(_CONVERTER):
        return Path(os.environ[_CONVERTER])
    spec = importlib.util.find_spec("model_converter")
    places = spec.submodule_search_locations if spec else None
    return Path(*(places or [os.devnull])[:1], "binaries", "bin", "model-converter")


def _converter_runs() -> bool:
    if not _converter().is_file():
        return False
    try:
        return subprocess.run([_converter(), "--version"], capture_output=True, check=False).returncode == 0
    except OSError:  # the file is not a program
        return False


_CONVERTER_NEED = Need(
    "Arm's model converter in a form that runs on this system",
    lambda: f"on a system with glibc 2.38 or later: {install_hint('vgf')}; or set {_CONVERTER} to one that runs",
    _converter_runs,
)


class EthosU(BuiltInBackend):
    """The backend `ethos-u`."""

    name = "ethos-u"
    separable = True
    delegate_id = "EthosUBackend"
    needs = (extra("ethos-u", "Arm's compiler Vela", "ethosu"), _TOSA_TOOLS)
    distributions = _DISTRIBUTIONS
    loaded_marker = "executorch.backends.arm.arm_vela"
    same_options = ("target",)

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's EthosUPartitioner with the options of `backend-ethos-u.schema.json`."""
        from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner

        from etplugins.arm import vela

        own = _own_options(options)
        if config := own.pop("config_ini", None):
            described = vela.of_manifest(config)
            own = {**own, **described, "extra_flags": [*own.get("extra_flags", ()), *described["extra_flags"]]}
        return EthosUPartitioner(_with_common_options(EthosUCompileSpec(**own), options))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's EthosUQuantizer with the options of `quantizer-ethos-u.schema.json`."""
        from executorch.backends.arm.ethosu import EthosUCompileSpec
        from executorch.backends.arm.quantizer import EthosUQuantizer

        return _configured(EthosUQuantizer(EthosUCompileSpec(options["target"])), options, context.qat)

    def check_options(self, options: Options) -> list[Problem]:
        """Refuses a name beside a description of the same."""
        both = options.get("config_ini", {}).keys() & options.keys()
        hint = "leave one of them out"
        return [Problem(f"`config_ini` has a `{key}`, too", (key,), hint) for key in sorted(both)]

    def lowering_context(self, partitioners: Partitioners) -> AbstractContextManager[None]:
        """A context that shows Vela's messages only if it fails, and keeps what it estimates."""
        from etplugins.arm import vela

        return vela.watched()


class Tosa(BuiltInBackend):
    """The backend `tosa`."""

    name = "tosa"
    separable = True
    delegate_id = "TOSABackend"
    needs = (_TOSA_TOOLS,)
    distributions = _DISTRIBUTIONS

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's TOSAPartitioner with the options of `backend-tosa.schema.json`."""
        from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
        from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

        spec = TosaCompileSpec(options.get("tosa_spec", "TOSA-1.0+FP"))
        return TOSAPartitioner(_with_common_options(spec, options))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's TOSAQuantizer with the options of `quantizer-tosa.schema.json`."""
        from executorch.backends.arm.quantizer import TOSAQuantizer
        from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec

        spec = TosaCompileSpec(options.get("tosa_spec", "TOSA-1.0+INT"))
        return _configured(TOSAQuantizer(spec), options, context.qat)


class Vgf(BuiltInBackend):
    """The backend `vgf`."""

    name = "vgf"
    separable = True
    delegate_id = "VgfBackend"
    needs = (_TOSA_TOOLS, _CONVERTER_NEED)
    distributions = (*_DISTRIBUTIONS, "ai-ml-sdk-model-converter")

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's VgfPartitioner with the options of `backend-vgf.schema.json`."""
        from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner

        os.environ.setdefault(_CONVERTER, str(_converter()))
        return VgfPartitioner(_with_common_options(VgfCompileSpec(**_own_options(options)), options))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's VgfQuantizer with the options of `quantizer-vgf.schema.json`."""
        from executorch.backends.arm.quantizer import VgfQuantizer
        from executorch.backends.arm.vgf import VgfCompileSpec

        return _configured(VgfQuantizer(VgfCompileSpec(options.get("tosa_spec"))), options, context.qat)


def _own_options(options: Options) -> Options:
    """Returns the options that are not shared: the arguments of the backend's own compile spec."""
    return {name: value for name, value in options.items() if name not in _COMMON}


def _with_common_options(spec: Any, options: Options) -> Any:
    """Sets in a compile spec of ExecuTorch for Arm the options that all three backends share. Returns the spec."""
    from executorch.backends.arm.common.pipeline_config import ArmPassPipelineConfig

    if options.get("preserve_io_quantization"):
        spec._set_preserve_io_quantization(True)
    if "passes" in options:
        defaults = spec._get_pass_pipeline_config().to_dict()
        settings = {
            name: value.upper() if isinstance(value, str) else value for name, value in options["passes"].items()
        }
        spec.set_pass_pipeline_config(ArmPassPipelineConfig.from_dict({**defaults, **settings}))
    return spec


def _configured(quantizer: Any, options: Options, qat: bool) -> Any:
    """Sets in a quantizer of ExecuTorch for Arm which modules it quantizes, and how. Returns the quantizer."""
    from executorch.backends.arm.quantizer import (
        get_symmetric_a16w8_quantization_config,
        get_symmetric_quantization_config,
    )

    settings = {
        "is_per_channel": options.get("per_channel", True),
        "is_qat": qat,
        "is_dynamic": options.get("dynamic", False),
    }
    if options.get("activations") == "int16":
        config = get_symmetric_a16w8_quantization_config(**settings)
    elif options.get("weights") == "int4":
        config = get_symmetric_quantization_config(**settings, weight_qmin=-7, weight_qmax=7)
    else:
        config = get_symmetric_quantization_config(**settings)
    for name in options.get("modules", []):
        quantizer.set_module_name(name, config)
    for name in options.get("leave_out", []):
        quantizer.set_module_name(name, None)
    return quantizer if "modules" in options else quantizer.set_global(config)
