"""MediaTek NeuroPilot: NPUs of Dimensity chips."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Need, Options, QuantizerContext
from etbuild.backends.needs import package

_INSTALL = "get the wheels mtk_converter and mtk_neuron from MediaTek's NeuroPilot Express SDK, and install both"


class MediaTek(BuiltInBackend):
    """The backend `mediatek`."""

    name = "mediatek"
    separable = False
    delegate_id = "NeuropilotBackend"
    needs = (
        Need("MediaTek's mtk_converter", _INSTALL, package("mtk_converter")),
        Need("MediaTek's mtk_neuron", _INSTALL, package("mtk_neuron")),
    )
    distributions = ("mtk-converter", "mtk-neuron")

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's NeuropilotPartitioner with the options of `backend-mediatek.schema.json`."""
        from executorch.backends.mediatek.partitioner import NeuropilotPartitioner
        from executorch.exir.backend.backend_details import CompileSpec

        specs = [CompileSpec("platform-config", options["platform_config"].encode())]
        if "extract_shared_blob_key" in options:
            specs.append(CompileSpec("ExtractSharedBlobKey", options["extract_shared_blob_key"].encode()))
        if options.get("import_forever"):
            specs.append(CompileSpec("ImportForever", b""))
        compiler_options = sorted(options.get("compiler_options", {}).items())
        specs += [CompileSpec(key, value.encode()) for key, value in compiler_options]
        skipped = {name: set(options[name]) for name in ("op_types_to_skip", "op_names_to_skip") if name in options}
        return NeuropilotPartitioner(specs, **skipped)

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's NeuropilotQuantizer with the options of `quantizer-mediatek.schema.json`."""
        from executorch.backends.mediatek.quantizer import NeuropilotQuantizer, Precision

        quantizer = NeuropilotQuantizer()
        quantizer.setup_precision(Precision[options.get("precision", "A8W8")])
        return quantizer
