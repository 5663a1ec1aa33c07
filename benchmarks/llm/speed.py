"""Measures programs of one language model in one process, in turn.

    python benchmarks/llm/speed.py ROUNDS NAME=PROGRAM...

It prints JSON: for each name, milliseconds of a prefill of 128 tokens and of one token of the decode, of each round;
and the scores after the prefill.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - kernels of quantized embeddings
import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - kernels of attention and caches
from executorch.runtime import Runtime

PREFILL, DECODE = 128, 48
"""The numbers of tokens of one call of the prefill, and of the decode after it."""


class Program:
    """A program with one method `forward`, of tokens and positions."""

    def __init__(self, path: Path) -> None:
        self.program = Runtime.get().load_program(path)  # the method does not keep it
        self.forward = self.program.load_method("forward")
        self.one_position = list(self.forward.metadata.input_tensor_meta(1).sizes()) == [1]

    def call(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """tokens: int64 [1, seq], the first at this position -> scores of the last token, float32 [vocabulary]"""
        last = position + (1 if self.one_position else tokens.shape[1])
        scores = self.forward.execute([tokens, torch.arange(position, last)])[0]
        return scores.reshape(-1, scores.shape[-1])[-1]

    def round(self) -> tuple[float, float, torch.Tensor]:
        """Milliseconds of the prefill, and of one token of the decode; and the scores after the prefill."""
        tokens = torch.arange(100, 100 + PREFILL).unsqueeze(0)
        start = time.perf_counter()
        first = scores = self.call(tokens, 0)
        prefill = time.perf_counter() - start
        first = first.clone()
        start = time.perf_counter()
        for number in range(DECODE):
            scores = self.call(scores.argmax().reshape(1, 1), PREFILL + number)
        return prefill * 1e3, (time.perf_counter() - start) / DECODE * 1e3, first


def main() -> None:
    """The command line."""
    named = dict(argument.split("=", 1) for argument in sys.argv[2:])
    programs = {name: Program(Path(path)) for name, path in named.items()}
    scores = {name: program.round()[2] for name, program in programs.items()}  # the first round warms up
    rounds: dict[str, Any] = {name: [] for name in programs}
    for _ in range(int(sys.argv[1])):
        for name, program in programs.items():
            rounds[name].append(program.round()[:2])
    found = {
        name: {
            "prefill": [prefill for prefill, _ in rounds[name]],
            "decode": [decode for _, decode in rounds[name]],
            "scores": scores[name].tolist(),
        }
        for name in programs
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
