"""The script that a user of ExecuTorch would write for a manifest of the benchmarks.

    python benchmarks/plain.py MANIFEST OUT [--uncorrected]

It exports each method, lowers all methods together with XNNPACK, and writes the program, with the weights in it or in
one file beside it. A user would write all of it but `sort_weights`, `etbuild`, `etplugins` and, often, `no_grad`.
What ExecuTorch and XNNPACK compute wrongly is corrected as `etbuild` does, and what need not be computed in each call
is left out, so that the programs can be compared.
"""

import importlib
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.passes import MemoryPlanningPass
from safetensors.torch import load_file
from torch.export import Dim, ExportedProgram, export

from etbuild.surroundings import arithmetic
from etplugins.upstream import core_operators, lowering, tanh_gelu, xnnpack

MANIFEST, OUT = Path(sys.argv[1]), Path(sys.argv[2])
CORRECTED = sys.argv[3:] != ["--uncorrected"]
sys.path.insert(0, str(MANIFEST.parent))


def make_module(model: dict[str, Any]) -> torch.nn.Module:
    """The module, with the weights of the file, or those that its factory draws."""
    torch.manual_seed(0)
    module, name = model["factory"].split(":")
    made: torch.nn.Module = getattr(importlib.import_module(module), name)(**model.get("kwargs", {}))
    made = made.eval().requires_grad_(False)
    if "weights" in model:
        made.load_state_dict(load_file(MANIFEST.with_name(model["weights"])))
    return made


def make_input(example: dict[str, Any]) -> torch.Tensor:
    """One input, as `example_inputs` of a manifest describes it."""
    shape, dtype = torch.Size(example["shape"]), getattr(torch, example.get("dtype", "float32"))
    if example.get("fill") == "arange":
        return torch.arange(shape.numel()).reshape(shape).to(dtype)
    return torch.full(shape, example.get("fill", 0), dtype=dtype)


def quantize_weights(module: torch.nn.Module) -> None:
    """Quantizes linear layers to 4 bits."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    quantize_(module, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)))


def quantize_operators(program: ExportedProgram, inputs: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    """Quantizes weights and activations to 8 bits. One call finds the scales."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(program.module(), quantizer)
    prepared(*inputs)
    return convert_pt2e(prepared)


def export_methods(manifest: dict[str, Any]) -> dict[str, ExportedProgram]:
    """The graph of each method, in the order of their names."""
    module = make_module(manifest["model"])
    quantize = manifest["defaults"].get("quantize", {})
    if "torchao" in quantize:
        quantize_weights(module)
    programs = {}
    for name, method in sorted(manifest["methods"].items()):
        module.forward = getattr(module, method.get("entry", name))
        inputs = tuple(map(make_input, method["example_inputs"]))
        programs[name] = export(module, inputs, dynamic_shapes=dynamic_shapes(method))
        if "pt2e" in quantize:
            programs[name] = export(quantize_operators(programs[name], inputs), inputs)
        if CORRECTED:
            core_operators.make_lowerable(programs[name], ("methods", name))
            tanh_gelu.write_out(programs[name])
        for file in manifest.get("named_data", ()):
            mark_weights(programs[name], file)
    return programs


def mark_weights(program: ExportedProgram, file: str) -> None:
    """Marks all weights for the file beside the program."""
    signature = program.graph_signature
    for node in program.graph.nodes:
        if node.name in signature.inputs_to_parameters or node.name in signature.inputs_to_buffers:
            node.meta.setdefault("custom", {})["delegate_constant_tag"] = file


def dynamic_shapes(method: dict[str, Any]) -> list[Any] | None:
    """The dynamic dimensions of each input; None if there are none."""
    if "dynamic_shapes" not in method:
        return None
    return [
        shape and [dim and Dim(dim["dim"], min=dim["min"], max=dim["max"]) for dim in shape]
        for shape in method["dynamic_shapes"]
    ]


def sort_weights(edge: EdgeProgramManager) -> None:
    """Puts the weights of backends in the order of their keys, as `etbuild` does. Else they follow the graph."""
    found = edge._named_data_store.get_named_data_store_output()
    edge._named_data_store = NamedDataStore()
    for key, entry in sorted(found.pte_data.items()):
        blob = bytes(found.buffers[entry.buffer_index])
        edge._named_data_store.add_named_data(key, blob, entry.alignment, tensor_layout=entry.tensor_layout)


def main() -> None:
    """Writes the program, and its weights beside it."""
    arithmetic.leave_out_other_libraries()
    manifest = yaml.safe_load(MANIFEST.read_text("utf-8"))
    with torch.no_grad():  # else nodes that a model computes without gradients get other debug handles
        programs = export_methods(manifest)
    partitioners = {name: [XnnpackPartitioner()] for name in programs}
    constants = dict(sorted(manifest.get("constant_methods", {}).items())) or None
    with ExitStack() as around:
        for each in (lowering.around(), xnnpack.around(partitioners)) if CORRECTED else ():
            around.enter_context(each)
        edge = to_edge_transform_and_lower(programs, partitioner=partitioners, constant_methods=constants)
    if CORRECTED:
        lowering.finish(edge)
    files = list(manifest.get("named_data", ()))
    if not files:
        sort_weights(edge)
    config = ExecutorchBackendConfig(
        external_constants=(lambda node: node.meta.get("custom", {}).get("delegate_constant_tag")) if files else False,
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=manifest.get("share_mutable_buffers", False)),
    )
    program, name = edge.to_executorch(config), manifest["name"]
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / f"{name}.pte").open("wb") as file:
        program.write_to_file(file)
    if files:
        program.write_tensor_data_to_file(str(OUT))
    for tag in files:
        (OUT / f"{tag}.ptd").rename(OUT / f"{name}.{tag}.ptd")


if __name__ == "__main__":
    main()
