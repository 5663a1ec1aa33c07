"""VGF: Arm's format for the ML extensions for Vulkan."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

from etbuild.backends.arm.common import DISTRIBUTIONS, TOSA_TOOLS, configured, own_options, with_common_options
from etbuild.backends.backend import BuiltInBackend, Context, Need, Options, QuantizerContext

_CONVERTER = "MODEL_CONVERTER_PATH"  # ExecuTorch looks there first


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
    "install it so: pip install 'etbuild[vgf]', on a system with glibc 2.38 or later; "
    f"or set {_CONVERTER} to one that runs",
    _converter_runs,
)


class Vgf(BuiltInBackend):
    """The backend `vgf`."""

    name = "vgf"
    separable = True
    delegate_id = "VgfBackend"
    needs = (TOSA_TOOLS, _CONVERTER_NEED)
    distributions = (*DISTRIBUTIONS, "ai-ml-sdk-model-converter")

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's VgfPartitioner with the options of `backend-vgf.schema.json`."""
        from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner

        os.environ.setdefault(_CONVERTER, str(_converter()))
        return VgfPartitioner(with_common_options(VgfCompileSpec(**own_options(options)), options))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's VgfQuantizer with the options of `quantizer-vgf.schema.json`."""
        from executorch.backends.arm.quantizer import VgfQuantizer
        from executorch.backends.arm.vgf import VgfCompileSpec

        return configured(VgfQuantizer(VgfCompileSpec(options.get("tosa_spec"))), options, context.qat)
