"""Measures programs of one language model in one process, in turn.

    python benchmarks/llm/speed.py NAME=PROGRAM...

PROGRAM is a .pte, or a folder with the programs of transformers' exporter. It prints JSON: for each name, milliseconds
of a prefill of 128 tokens and of one token of the decode, and the scores after the prefill.

The place of a program in memory depends on what was loaded before it: the first of two equal programs was measured to
take 1.13 times as long for a token. So give the programs in another order each time.
"""

from __future__ import annotations

import copy
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - kernels of quantized embeddings
import torch
import transformers
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - kernels of attention and caches
from executorch.runtime import Runtime

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import transformers_exporter

LENGTH = 512  # tokens that the cache holds
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


class TransformersPrograms(transformers_exporter.Programs):
    """The programs of transformers' exporter. A text is said once by `generate`, and each call's masks and positions
    are kept: the rounds measure the programs, and the copies of the cache that they take and return."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.kept: list[dict[str, Any]] = []
        self.recorded = False
        self.scores, self.calls = torch.zeros(1), 0
        self.cache: Any = None
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        ids = torch.arange(100, 100 + PREFILL).tolist()
        transformers_exporter.generate(model, self, ids, 1 + TURNS * TOKENS, LENGTH)
        self.empty, self.recorded = self.cache, True

    def call(self, name: str, given: dict[str, Any]) -> Any:
        """Runs a program, and keeps what it gets while the text is said."""
        if not self.recorded:
            self.cache = self.cache or copy.deepcopy(given["past_key_values"])
            self.kept.append({key: value for key, value in given.items() if key != "past_key_values"})
        return super().call(name, given)

    def step(self, tokens: torch.Tensor) -> None:
        """tokens: int64 [1, seq], of the next call"""
        given = self.kept[self.calls] | {"input_ids": tokens, "past_key_values": self.cache}
        said = self.call("decode" if self.calls else "prefill", given)
        self.calls, self.cache, self.scores = self.calls + 1, said.past_key_values, said.logits[0, -1]

    def prefill(self) -> float:
        """Starts a new text. Returns the milliseconds that it took."""
        self.calls, self.cache = 0, copy.deepcopy(self.empty)
        start = time.perf_counter()
        self.step(self.kept[0]["input_ids"])
        return (time.perf_counter() - start) * 1e3

    def decode(self) -> float:
        """Continues the text by the tokens of one turn. Returns the milliseconds that one token took."""
        start = time.perf_counter()
        for _ in range(TOKENS):
            self.step(self.scores.argmax().reshape(1, 1))
        return (time.perf_counter() - start) / TOKENS * 1e3


def measure(programs: dict[str, Program | TransformersPrograms]) -> dict[str, Any]:
    """One round of all programs. Each turn has an order of its own: a program leaves its weights in the caches, and the
    next one is slower after a large program than after a small one."""
    prefills = {name: programs[name].prefill() for name in order(programs)}
    turns = [{name: programs[name].decode() for name in order(programs)} for _ in range(TURNS)]
    return {
        name: {"prefill": prefills[name], "decode": statistics.mean(turn[name] for turn in turns)} for name in programs
    }


def order(programs: Iterable[str]) -> list[str]:
    """The names in any order."""
    names = [*programs]
    return random.sample(names, len(names))


def main() -> None:
    """The command line."""
    named = dict(argument.split("=", 1) for argument in sys.argv[1:])
    kinds = {name: TransformersPrograms if Path(path).is_dir() else Program for name, path in named.items()}
    programs = {name: kind(Path(named[name])) for name, kind in kinds.items()}
    measure(programs)  # warms up
    found = measure(programs)
    for name, program in programs.items():
        program.prefill()
        found[name]["scores"] = program.scores.tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
