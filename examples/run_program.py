"""Runs one method of a program in ExecuTorch's runtime and prints its outputs.

    python examples/run_program.py OUT/mlp.pte forward
    python examples/run_program.py OUT/tiny_lm.pte prefill '[[72, 101, 108, 108, 111]]'

An input is written as JSON. Missing inputs are filled with 0, 1, 2, ..., in the largest sizes that the method takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import executorch.kernels.quantized  # noqa: F401  # kernels of quantized operators that no backend took
import torch
from executorch.runtime import Method, Program, Runtime

# ExecuTorch's numbers of the element types.
DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64,
    5: torch.float16, 6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip


def named_data(program: Path) -> list[Path]:
    """The .ptd files that the index beside the program lists.

    Raises:
        FileNotFoundError: One is not there. The runtime itself would crash at the first weight that it misses.
    """
    index = program.with_suffix(".index.json")
    if not index.exists():
        return []
    artifacts = json.loads(index.read_text())["artifacts"]
    files = [program.parent / artifact["file"] for artifact in artifacts if artifact["kind"] == "named_data"]
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"{program.name} needs {file.name}, which is not beside it")
    return files


def merged(files: list[Path], directory: Path) -> Path:
    """One .ptd with the content of several: the Python runtime takes only one. (C++'s Module takes several.)"""
    from executorch.exir._serialize._cord import Cord
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from executorch.exir._serialize.data_serializer import DataPayload
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

    store = NamedDataStore()
    for file in files:
        payload = FlatTensorSerializer().deserialize(Cord(file.read_bytes()))
        for key, entry in payload.named_data.items():
            buffer = payload.buffers[entry.buffer_index]
            store.add_named_data(key, buffer, external_tag="", tensor_layout=entry.tensor_layout)
    output = store.get_named_data_store_output()
    path = directory / "merged.ptd"
    path.write_bytes(bytes(FlatTensorSerializer().serialize(DataPayload(output.buffers, output.external_data[""]))))
    return path


def load(program: Path, data: list[Path], scratch: Path) -> Program:
    """Loads a program with its named data; `scratch` is a directory that outlives it."""
    if b"llama::" in program.read_bytes():  # kernels of ExecuTorch's operators for language models
        from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
    data_path = merged(data, scratch) if len(data) > 1 else next(iter(data), None)
    return Runtime.get().load_program(program, data_path=data_path)


def inputs_of(method: Method, given: list[str]) -> list[torch.Tensor]:
    """The method's inputs: the given ones (JSON), then generated ones."""
    tensors = []
    for index in range(method.metadata.num_inputs()):
        info = method.metadata.input_tensor_meta(index)
        if index < len(given):
            tensors.append(torch.tensor(json.loads(given[index]), dtype=DTYPES[info.dtype()]))
        else:
            count = torch.Size(info.sizes()).numel()
            tensors.append(torch.arange(count).reshape(info.sizes()).to(DTYPES[info.dtype()]))
    return tensors


def main() -> int:
    """The command line."""
    torch.set_printoptions(threshold=32)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="the .pte file")
    parser.add_argument("method")
    parser.add_argument("inputs", nargs="*", metavar="input")
    parser.add_argument("--data", type=Path, action="append", help="a .ptd file (default: those of the index)")
    options = parser.parse_args()
    try:
        data = options.data or named_data(options.program)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        program = load(options.program, data, Path(scratch))
        method = program.load_method(options.method)
        inputs = inputs_of(method, options.inputs)
        print(f"{options.program.name} {options.method}(" + ", ".join(str(list(x.shape)) for x in inputs) + ")")
        for output in method.execute(inputs):
            print(f"{str(output.dtype).removeprefix('torch.')} {list(output.shape)}\n{output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
