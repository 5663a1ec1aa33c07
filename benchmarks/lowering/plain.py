"""The script that a user of ExecuTorch would write for a project of this folder.

    python benchmarks/lowering/plain.py MANIFEST OUT

It lowers all methods together with XNNPACK, and writes all weights into one file beside the .pte.
"""

import json
import sys
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from safetensors.torch import load_file
from torch.export import ExportedProgram, export

MANIFEST, OUT = Path(sys.argv[1]), Path(sys.argv[2])
TAG = "weights"

sys.path.insert(0, str(MANIFEST.parent))
from model import create  # noqa: E402


def export_methods() -> dict[str, ExportedProgram]:
    """Returns each method's graph, with its weights marked for the file beside the program."""
    manifest = json.loads(MANIFEST.read_text("utf-8"))
    module = create(**manifest["model"]["kwargs"]).eval().requires_grad_(False)
    module.load_state_dict(load_file(MANIFEST.with_name(manifest["model"]["weights"])))
    programs = {}
    for name, method in sorted(manifest["methods"].items()):
        module.forward = getattr(module, method["entry"])
        example = method["example_inputs"][0]
        programs[name] = export(module, (torch.zeros(example["shape"], dtype=getattr(torch, example["dtype"])),))
        signature = programs[name].graph_signature
        for node in programs[name].graph.nodes:
            if node.name in signature.inputs_to_parameters or node.name in signature.inputs_to_buffers:
                node.meta.setdefault("custom", {})["delegate_constant_tag"] = TAG
    return programs


def main() -> None:
    """Writes program.pte and program.weights.ptd."""
    programs = export_methods()
    edge = to_edge_transform_and_lower(programs, partitioner={name: [XnnpackPartitioner()] for name in programs})
    program = edge.to_executorch(
        ExecutorchBackendConfig(
            external_constants=lambda node: node.meta.get("custom", {}).get("delegate_constant_tag"),
            memory_planning_pass=MemoryPlanningPass(),
        )
    )
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "program.pte").open("wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(OUT))
    (OUT / f"{TAG}.ptd").rename(OUT / f"program.{TAG}.ptd")


if __name__ == "__main__":
    main()
