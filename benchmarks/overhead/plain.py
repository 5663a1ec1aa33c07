"""The script that a user of ExecuTorch would write for examples/tiny_lm: `python benchmarks/overhead/plain.py OUT`.

The driver's own cost is measured against this script, which makes the same program: XNNPACK lowers both methods
together, and all weights are in one file beside the .pte.
"""

import sys
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from safetensors.torch import load_file
from torch.export import Dim, ExportedProgram, export

TINY_LM = Path(__file__).parents[2] / "examples" / "tiny_lm"
TAG = "weights"

sys.path.insert(0, str(TINY_LM))
from model import create  # noqa: E402


def load_module() -> torch.nn.Module:
    """Returns the module with its weights, ready to export."""
    torch.manual_seed(0)
    module = create(vocab_size=256, max_seq_len=128).eval().requires_grad_(False)
    module.load_state_dict(load_file(TINY_LM / "tiny_lm.safetensors"))
    return module


def export_methods(module: torch.nn.Module) -> dict[str, ExportedProgram]:
    """Returns each method's graph, in the order of their names."""
    long = torch.int64
    inputs = {
        "decode": (torch.zeros(1, 1, dtype=long), torch.zeros(1, dtype=long)),
        "prefill": (torch.zeros(1, 16, dtype=long),),
    }
    dynamic_shapes = {"decode": None, "prefill": ({1: Dim("seq", min=1, max=128)},)}
    programs = {}
    for name, values in inputs.items():
        module.forward = getattr(module, name)
        programs[name] = export(module, values, dynamic_shapes=dynamic_shapes[name])
    return programs


def tag_weights(program: ExportedProgram) -> None:
    """Marks every parameter and buffer for the file beside the program."""
    signature = program.graph_signature
    for node in program.graph.nodes:
        if node.name in signature.inputs_to_parameters or node.name in signature.inputs_to_buffers:
            node.meta.setdefault("custom", {})["delegate_constant_tag"] = TAG


def main(out: Path) -> None:
    """Writes tiny_lm.pte and tiny_lm.weights.ptd."""
    programs = export_methods(load_module())
    for program in programs.values():
        tag_weights(program)
    edge = to_edge_transform_and_lower(
        programs,
        partitioner={name: [XnnpackPartitioner()] for name in programs},
        constant_methods={
            "get_bos_id": 0,
            "get_eos_ids": [0],
            "get_max_seq_len": 128,
            "get_vocab_size": 256,
            "use_kv_cache": True,
        },
    )
    program = edge.to_executorch(
        ExecutorchBackendConfig(
            external_constants=lambda node: node.meta.get("custom", {}).get("delegate_constant_tag"),
            memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
        )
    )
    out.mkdir(parents=True, exist_ok=True)
    with (out / "tiny_lm.pte").open("wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(out))
    (out / f"{TAG}.ptd").rename(out / f"tiny_lm.{TAG}.ptd")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
