"""Decoders whose layers keep states of convolutions and recurrences: calls of any length say what transformers says."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etbuild.errors import BuildError, InputError
from etbuild.key.declared import Inputs
from etbuild.plan.parts import ModuleSource
from etplugins.transformers import other_mixtures, position_tables
from etplugins.transformers.parts import ConfigFile, DecoderCache, HuggingFace
from tests.helpers.language_models import CONFIGS, STATES, VOCABULARY, model, transformers
from tests.helpers.random_tokens import tokens

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers
CALLS = [0, 7, 8, 9, 20, 23]


def with_cache(made: Any, directory: Path, kind: Any) -> Any:
    """The same model with a cache in its buffers."""
    from etplugins.transformers import huggingface

    made.config.save_pretrained(directory)
    cache = DecoderCache(max_length=64, max_seq_length=16, kind=kind)
    wanted = HuggingFace(
        model_class="AutoModelForCausalLM",
        config=ConfigFile(file="config.json", set={}),
        attention="custom_sdpa" if kind == "custom" else None,
        task="text-generation",
        logits=None,
        cache=cache,
        max_source_length=None,
        generation_config=None,
        pooling=None,
        dense=(),
        normalize=False,
    )
    context: Any = SimpleNamespace(inputs=Inputs(roots=[directory]))
    cached = huggingface.create(ModuleSource(huggingface=wanted), context).eval()
    cached.load_state_dict(made.state_dict())
    return cached


@pytest.mark.parametrize("kind", [None, "custom"])
@pytest.mark.parametrize("name", STATES)
def test_calls_of_any_length_give_the_scores_of_transformers(name: str, kind: str | None, tmp_path: Path) -> None:
    """The second text begins at position 0 with the states of the first."""
    made = model(name)
    cached = with_cache(made, tmp_path, kind)
    for seed in (1, 2):
        ids = tokens(CALLS[-1], vocab_size=VOCABULARY, seed=seed)
        with torch.no_grad():
            expected = made(input_ids=ids, use_cache=False).logits
            calls = [cached.forward(ids[:, at:end], torch.tensor([at])) for at, end in itertools.pairwise(CALLS)]
        actual = torch.cat(calls, dim=1)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_a_method_of_a_fixed_length_has_a_loop(tmp_path: Path) -> None:
    """Without one, each token would have operators of its own."""
    made = model("mamba")
    cached = with_cache(made, tmp_path, None)
    ids = tokens(8, vocab_size=VOCABULARY, seed=1)
    program = torch.export.export(cached.requires_grad_(False), (ids, torch.tensor([0])), strict=False)
    assert sum("scan" in str(node.target) for node in program.graph.nodes if node.op == "call_function") == 2
    with torch.no_grad():
        expected = made(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(program.module()(ids, torch.tensor([0])), expected, rtol=1e-3, atol=1e-3)


def test_a_model_may_keep_the_number_of_tokens_before_a_call(tmp_path: Path) -> None:
    """Inkling asks for it before it gives its keys to the cache."""
    made = model("inkling")
    cached = with_cache(made, tmp_path, None)
    ids = tokens(9, vocab_size=VOCABULARY, seed=1)
    with torch.no_grad():
        expected = made(input_ids=ids, use_cache=False).logits
        calls = [cached.forward(ids[:, at:end], torch.tensor([at])) for at, end in [(0, 5), (5, 6), (6, 9)]]
    torch.testing.assert_close(torch.cat(calls, dim=1), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("jetmoe", None),
        ("llama4", "custom"),
        ("deepseek_v2", None),
        ("gpt_neo", None),
        ("mpt", None),
        ("gemma3n", "custom"),
        ("dynamic", None),
        *itertools.product(("roberta", "data2vec"), (None, "custom")),
    ],
)
def test_decoders_of_an_odd_form_give_the_scores_of_transformers(name: str, kind: str | None, tmp_path: Path) -> None:
    """A mixture that sorts tokens, complex numbers, a table of positions, a number of tokens in Python, layers that
    read the keys of others, frequencies that change for longer texts, and positions that do not begin at 0."""
    made = model(name)
    cached = with_cache(made, tmp_path, kind).requires_grad_(False)
    ids = tokens(CALLS[-1], vocab_size=VOCABULARY, seed=1).clamp(min=2)  # no padding
    example = (ids[:, :8], torch.tensor([0]))
    seq = torch.export.Dim("seq", min=1, max=16)
    exported = torch.export.export(cached, example, dynamic_shapes=({1: seq}, None), strict=False).module()
    with torch.no_grad():
        expected = made(input_ids=ids, use_cache=False).logits
        for forward in (cached.forward, exported):
            calls = [forward(ids[:, at:end], torch.tensor([at])) for at, end in itertools.pairwise(CALLS)]
            actual = torch.cat(calls, dim=1)
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_a_cache_is_not_longer_than_the_biases_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_length 64 is more than the configuration's `max_seq_len` 32"):
        with_cache(
            transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**{**CONFIGS["mpt"], "max_seq_len": 32})
            ),
            tmp_path,
            None,
        )


def test_a_cache_is_not_longer_than_a_table_whose_positions_begin_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RoBERTa's first position is that after padding, so its table holds fewer tokens than it has rows."""
    monkeypatch.setitem(CONFIGS, "roberta", {**CONFIGS["roberta"], "max_position_embeddings": 65})
    with pytest.raises(InputError, match=r"64 is more than the 63 positions of a text in the table `roberta\..*`"):
        with_cache(model("roberta"), tmp_path, None)


def test_a_table_of_positions_that_is_read_otherwise_is_an_error() -> None:
    """Other rows than those of the call could be meant."""
    model = torch.nn.Module()
    model.register_buffer("mask", torch.ones(1, 8, 8, dtype=torch.bool).tril(), persistent=False)
    position_tables.replace(model, 8)
    position_tables.begin(model, torch.tensor([3]))
    torch.testing.assert_close(model.mask[:, 6:8, :8].sum(-1), torch.tensor([[4, 5]]))
    for index in (0, (slice(None), slice(None, 2), slice(None, 8)), (slice(None), slice(0, 4, 2), slice(None, 8))):
        with pytest.raises(BuildError, match="reads a table of positions in a way that is not known"):
            model.mask[index]


@pytest.mark.parametrize(
    "use",
    [
        lambda mask, x: torch.where(mask, x, 0),
        lambda mask, x: x.masked_fill(mask, 0),
        lambda mask, x: mask.masked_fill(x > 0, 0),
        lambda mask, x: mask & (x > 0),
        lambda mask, x: (x > 0) & mask,
        lambda mask, x: mask & mask,
        lambda mask, x: ~mask,
        lambda mask, x: 1 - mask,
        lambda mask, x: x[mask],
        lambda mask, x: mask == x,
        lambda mask, x: mask.to(x.dtype),
        lambda mask, x: mask.float(),
        lambda mask, x: mask.shape[-1],
        lambda mask, x: [*mask],
    ],
)
def test_a_table_of_positions_that_is_read_as_a_tensor_is_an_error(use: Callable[[Any, Any], object]) -> None:
    model = torch.nn.Module()
    model.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).tril(), persistent=False)
    position_tables.replace(model, 8)
    position_tables.begin(model, torch.tensor([3]))
    with pytest.raises(BuildError, match="reads a table of positions in a way that is not known"):
        use(model.mask, torch.ones(8, 8))
    copied = copy.deepcopy(model).to(torch.bfloat16).eval()
    assert not hasattr(copied.mask, "device")
    torch.testing.assert_close(copied.mask[6:8, :8].sum(-1), torch.tensor([4, 5]))


@pytest.mark.parametrize("name", ["jetmoe", "llama4"])
def test_a_mixture_that_chooses_otherwise_stays_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(name)
    kind = {"jetmoe": "JetMoeTopKGating", "llama4": "Llama4TextMoe"}[name]
    part = next(part for part in made.modules() if type(part).__name__ == kind)
    forward = type(part).forward

    def other(self: Any, hidden_states: torch.Tensor) -> Any:
        first, *more = forward(self, hidden_states)
        return (first, *more[:1], more[1] * 2, *more[2:]) if name == "jetmoe" else (first * 2, *more)

    monkeypatch.setattr(type(part), "forward", other)
    other_mixtures.choose(made)
    assert type(part).forward is other
    monkeypatch.setattr(type(part), "forward", forward)
    other_mixtures.choose(made)
    assert type(part).forward is not forward
    other_mixtures.restore(made)
    assert type(part).forward is forward


def test_layers_of_another_form_are_refused(tmp_path: Path) -> None:
    """Zaya keeps inputs of a convolution itself, and would begin anew with each call."""
    config = transformers.AutoConfig.for_model("zaya", hidden_size=32, num_hidden_layers=2, vocab_size=VOCABULARY)
    made = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(BuildError, match="the states of this model cannot be kept"):
        with_cache(made, tmp_path, None)


@pytest.mark.parametrize("kind", [None, "custom", "external"])
def test_a_state_outside_of_the_cache_is_an_error(kind: str | None, tmp_path: Path) -> None:
    """RecurrentGemma assigns states to attributes of its layers. No call would see those of the call before it."""
    with pytest.raises(BuildError, match="layer 0 keeps its state in an attribute of the model") as raised:
        with_cache(model("recurrent_gemma"), tmp_path, kind)
    assert "leave out `cache` and `task`" in str(raised.value)


@pytest.mark.parametrize("asked", [[0], [0, 1]])
def test_a_state_that_no_recurrence_takes_is_an_error(asked: list[int]) -> None:
    """A mixer that computes its recurrence without it would begin with zeros in each call."""
    from etplugins.transformers.state_cache import StateCache, states_only

    cache = StateCache([states_only(), states_only()])

    def call() -> None:
        with cache.at(torch.tensor([0]), torch.nn.Module()):
            for layer in asked:
                cache.get_recurrent_state(layer)

    with pytest.raises(BuildError, match="recurrence is not one that is known"):
        call()
