"""The programs of transformers' own `ExecutorchExporter`, and the way that they run.

    python -m benchmarks.transformers_exporter CHECKPOINT PROMPT POSITIONS OUT

writes them for prompts of PROMPT tokens and a cache of POSITIONS tokens.

They are two, with XNNPACK and without quantization: `prefill` for a prompt of one length and `decode` for a single
token. Both have all weights. They take the cache as inputs, and return it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import transformers


def export(model: Any, ids: list[int], positions: int, out: str) -> None:
    """Writes `prefill.pte`, `decode.pte` and what their runner reads.

    Args:
        model: A decoder in float32.
        ids: A prompt, whose length is that of all prompts of the program.
        positions: The tokens that the cache holds.
        out: The folder.
    """
    from transformers.exporters import ExecutorchConfig, ExecutorchExporter

    config = ExecutorchConfig(backend="xnnpack")
    made = ExecutorchExporter().export_for_generation(model, _prompt(ids), config, generation_config=_limits(positions))
    made.save_pretrained(out)


class Programs:
    """Programs that `export` has written."""

    def __init__(self, folder: str) -> None:
        from transformers.exporters import ExportedModel

        self._exported = ExportedModel.from_pretrained(folder)

    def call(self, name: str, given: dict[str, Any]) -> Any:
        """Runs `prefill` or `decode`, and returns what `forward` of the model would return.

        Args:
            name: The program.
            given: The arguments of `forward`. The program takes some of them.
        """
        taken = self._exported.components[name].metadata.kwargs
        return self._exported.runners[name](**{key: value for key, value in given.items() if key in taken})


def generate(model: Any, programs: Programs, ids: list[int], count: int, positions: int) -> list[int]:
    """The tokens after a prompt, by `generate` of transformers, which calls the programs in place of the model.

    Args:
        model: The model that the programs were made of. Its `forward` is replaced.
        programs: The programs.
        ids: The tokens of the prompt, as many as `export` had.
        count: The number of tokens after it.
        positions: The tokens that the cache holds, as `export` had it.
    """

    @functools.wraps(model.forward)
    def forward(**given: Any) -> Any:
        name = "prefill" if given["input_ids"].shape[1] == len(ids) else "decode"
        return programs.call(name, given)

    model.forward = forward
    settings = _limits(positions, max_new_tokens=count, min_new_tokens=count)
    said: list[int] = model.generate(**_prompt(ids), generation_config=settings)[0].tolist()
    return said[len(ids) :]


def _prompt(ids: list[int]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}


def _limits(positions: int, **more: Any) -> Any:
    cache = {"cache_implementation": "static", "max_cache_len": positions}
    return transformers.GenerationConfig(do_sample=False, pad_token_id=0, **cache, **more)


def main() -> None:
    """The command line."""
    checkpoint, prompt, positions, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    export(model, list(range(1, prompt + 1)), positions, out)


if __name__ == "__main__":
    main()
