"""Mixtures of experts: one expert at a time is computed, in floats and in 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary

from etplugins.quantize.experts import ExpertTable, QuantizeExperts
from tests.helpers import commands
from tests.helpers.language_models import VOCABULARY, model, project
from tests.helpers.random_tokens import tokens
from tests.helpers.runtime import run

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers
CACHE = {"max_length": 64, "max_seq_length": 16, "kind": "custom"}
IDS = tokens(20, vocab_size=VOCABULARY, seed=3)
CALLS = [(0, 12), (12, 13), (13, 20)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    built = {}
    for name, quantize in {"floats": {}, "4 bits": {"quantize": {"torchao": [{"config": "8da4w"}]}}}.items():
        directory = tmp_path_factory.mktemp("mixture")
        defaults = {"partitioners": ["xnnpack"], **quantize}
        commands.build(project(directory, "mixture", CACHE, defaults=defaults), directory / "out")
        built[name] = directory / "out/net.pte"
    return built


def scores(path: Path, scratch: Path) -> torch.Tensor:
    calls = [("forward", [IDS[:, start:end], torch.tensor([start])]) for start, end in CALLS]
    [outputs] = run(path, [calls], scratch)
    return torch.cat([output for (output,) in outputs])


def expected(made: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = made(input_ids=IDS).logits
    return logits[0, [end - 1 for _, end in CALLS]]


def test_a_mixture_gives_the_scores_of_transformers(programs: dict[str, Path], tmp_path: Path) -> None:
    wanted = expected(model("mixture"))
    torch.testing.assert_close(scores(programs["floats"], tmp_path), wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max())


def test_experts_in_4_bits_are_small_and_compute_what_their_integers_say(
    programs: dict[str, Path], tmp_path: Path
) -> None:
    """Other layers compute with 8 bits for their inputs, so that the scores differ a little."""
    assert programs["4 bits"].stat().st_size < 0.25 * programs["floats"].stat().st_size
    made = model("mixture")
    config = QuantizeExperts(torch.int4, 32, None)
    for part in made.modules():
        for name, weight in part.named_parameters(recurse=False):
            if weight.dim() == 3:
                weight.data = ExpertTable(weight, config)[torch.arange(len(weight))]
            elif weight.dim() == 2 and name == "weight" and isinstance(part, torch.nn.Linear):
                weight.data = ExpertTable(weight.unsqueeze(0), config)[torch.tensor([0])][0]
    wanted, actual = expected(made), scores(programs["4 bits"], tmp_path)
    assert (actual - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_a_call_plans_memory_for_one_expert(programs: dict[str, Path]) -> None:
    """The weights of all experts take 2.4 MB, and those that 16 tokens have may be as many."""
    for path in programs.values():
        program: Any = deserialize_pte_binary(path.read_bytes())
        plans = getattr(program, "program", program).execution_plan
        [plan] = [each for each in plans if each.name == "forward"]
        assert sum(plan.non_const_buffer_sizes) < 1 << 20


@pytest.mark.parametrize(("dtype", "most"), [(torch.int4, 0.08), (torch.int8, 0.006)])
@pytest.mark.parametrize("group", [32, None])
def test_a_table_gives_the_weights_of_experts(dtype: torch.dtype, most: float, group: int | None) -> None:
    weight = torch.rand(4, 6, 64) - 0.5
    found = ExpertTable(weight, QuantizeExperts(dtype, group, None))[torch.tensor([2, 0])]
    assert found.shape == (2, 6, 64)
    assert (found - weight[[2, 0]]).abs().max() < most
