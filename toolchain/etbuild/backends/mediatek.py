"""MediaTek NeuroPilot: NPUs of Dimensity chips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etbuild.backends.backend import Context, Need, Options
from etbuild.backends.needs import package

_INSTALL = "get the wheels mtk_converter and mtk_neuron from MediaTek's NeuroPilot Express SDK, and install both"
CONVERTER = Need("MediaTek's mtk_converter", _INSTALL, package("mtk_converter"))
COMPILER = Need("MediaTek's mtk_neuron", _INSTALL, package("mtk_neuron"))


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's NeuropilotPartitioner with the options of `backend-mediatek.schema.json`."""
    from executorch.backends.mediatek.partitioner import NeuropilotPartitioner
    from executorch.exir.backend.backend_details import CompileSpec

    del context
    specs = [CompileSpec("platform-config", options["platform_config"].encode())]
    if "extract_shared_blob_key" in options:
        specs.append(CompileSpec("ExtractSharedBlobKey", options["extract_shared_blob_key"].encode()))
    if options.get("import_forever"):
        specs.append(CompileSpec("ImportForever", b""))
    specs += [CompileSpec(key, value.encode()) for key, value in sorted(options.get("compiler_options", {}).items())]
    skipped = {name: set(options[name]) for name in ("op_types_to_skip", "op_names_to_skip") if name in options}
    return NeuropilotPartitioner(specs, **skipped)


def create_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's NeuropilotQuantizer with the options of `quantizer-mediatek.schema.json`."""
    from executorch.backends.mediatek.quantizer import NeuropilotQuantizer, Precision

    del load_callable
    quantizer = NeuropilotQuantizer()
    quantizer.setup_precision(Precision[options.get("precision", "A8W8")])
    return quantizer
