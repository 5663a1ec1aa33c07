"""What the programs of examples/cpp print, computed by ExecuTorch's Python runtime."""

from __future__ import annotations

import struct
from pathlib import Path


def generated(directory: Path, text: str, count: int) -> str:
    """Continues a text with the program tiny_lm.

    Args:
        directory: The directory of its files.
        text: The text.
        count: The number of tokens.

    Returns:
        A line for each token, with the bits of its first scores.
    """
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(directory / "tiny_lm.pte", data_path=directory / "tiny_lm.weights.ptd")
    prefill, decode = program.load_method("prefill"), program.load_method("decode")
    tokens = list(text.encode())
    [scores] = prefill.execute([torch.tensor([tokens])])
    lines = []
    for position in range(len(tokens), len(tokens) + count):
        token = int(scores.argmax())
        bits = struct.unpack("<3I", scores.flatten()[:3].numpy().tobytes())
        lines.append(" ".join([str(token), *(f"{each:08x}" for each in bits)]))
        [scores] = decode.execute([torch.tensor([[token]]), torch.tensor([position])])
    return "\n".join(lines) + "\n"


def tokens(printed: str) -> list[str]:
    """Returns only the tokens: another processor rounds the scores in another way."""
    return [line.split()[0] for line in printed.splitlines()]
