"""Measures programs of one language model in one process, in turn.

    python benchmarks/llm/speed.py ROUNDS NAME=PROGRAM...

It prints JSON: for each name, milliseconds of a prefill of 128 tokens and of one token of the decode, of each round;
and the scores after the prefill.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - kernels of quantized embeddings
import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - kernels of attention and caches
from executorch.runtime import Runtime

PREFILL, TURNS, TOKENS = 128, 6, 8
"""The number of tokens of one call of the prefill; the turns of each program in a round, and the tokens of a turn."""


class Program:
    """A program with one method `forward`, of tokens and positions."""

    def __init__(self, path: Path) -> None:
        self.program = Runtime.get().load_program(path)  # the method does not keep it
        self.forward = self.program.load_method("forward")
        self.scores, self.position = torch.zeros(1), 0
        self.one_position = list(self.forward.metadata.input_tensor_meta(1).sizes()) == [1]

    def call(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """tokens: int64 [1, seq], the first at this position -> scores of the last token, float32 [vocabulary]"""
        last = position + (1 if self.one_position else tokens.shape[1])
        scores = self.forward.execute([tokens, torch.arange(position, last)])[0]
        return scores.reshape(-1, scores.shape[-1])[-1]

    def prefill(self) -> float:
        """Starts a new text. Returns the milliseconds that it took."""
        tokens = torch.arange(100, 100 + PREFILL).unsqueeze(0)
        start = time.perf_counter()
        self.scores, self.position = self.call(tokens, 0), PREFILL
        return (time.perf_counter() - start) * 1e3

    def decode(self) -> float:
        """Continues the text by the tokens of one turn. Returns the milliseconds that one token took."""
        start = time.perf_counter()
        for _ in range(TOKENS):
            self.scores = self.call(self.scores.argmax().reshape(1, 1), self.position)
            self.position += 1
        return (time.perf_counter() - start) / TOKENS * 1e3


def measure(programs: dict[str, Program], rounds: int) -> dict[str, Any]:
    """The rounds of all programs. Their order changes, since each program leaves its weights in the caches."""
    found: dict[str, Any] = {name: {"prefill": [], "decode": []} for name in programs}
    for number in range(rounds):
        first = number % len(programs)
        order = [*programs][first:] + [*programs][:first]
        for name in order:
            found[name]["prefill"].append(programs[name].prefill())
        turns = [{name: programs[name].decode() for name in order} for _ in range(TURNS)]
        for name in order:
            found[name]["decode"].append(statistics.mean(turn[name] for turn in turns))
    return found


def main() -> None:
    """The command line."""
    named = dict(argument.split("=", 1) for argument in sys.argv[2:])
    programs = {name: Program(Path(path)) for name, path in named.items()}
    measure(programs, 1)  # warms up
    found = measure(programs, int(sys.argv[1]))
    for name, program in programs.items():
        program.prefill()
        found[name]["scores"] = program.scores.tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
