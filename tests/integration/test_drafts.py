"""Speculative decoding with the first layers of a model: `draft` proposes tokens, and `verify` confirms them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from etbuild.errors import BuildError, InputError
from etbuild.key.declared import Inputs
from etbuild.plan.parts import ModuleSource
from etkit.running.generation.caches import mask
from etkit.running.generation.continuation import continuation
from etkit.running.generation.decoder import Decoder
from etplugins.runtime import program_files
from etplugins.transformers.parts import ConfigFile, DecoderCache, HuggingFace
from tests.helpers import commands
from tests.helpers.language_models import CONFIGS, SHAPE, VOCABULARY, manifest, model, tokenizer
from tests.helpers.once import made_once
from tests.helpers.random_tokens import tokens

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

SLOTS, LAYERS = 64, 4
LARGE = {"model_type": "llama", **SHAPE, "hidden_size": 128, "intermediate_size": 256}
"""So large that the weights are most of a program."""
SHALLOW = {"llama": LARGE, **{name: CONFIGS[name] for name in ("qwen", "mistral")}}
"""Models of programs. They have two layers, since building them takes long."""
MODELS = {
    "llama": {**SHAPE, "model_type": "llama"},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": LAYERS, "n_head": 4, "vocab_size": VOCABULARY},
    "gemma2": {"model_type": "gemma2", "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24, **SHAPE},
    **{name: CONFIGS[name] for name in ("qwen", "mistral", "opt", "gpt_oss", "deepseek_v2", "gemma3n", "falcon")},
    "gpt_neo": {**CONFIGS["gpt_neo"], "num_layers": LAYERS, "attention_types": [[["global", "local"], 2]]},
}
DEEP = {
    name: {**each, **({} if each.keys() & {"n_layer", "num_layers"} else {"num_hidden_layers": LAYERS})}
    for name, each in MODELS.items()
}
KEYS_BY_PLACE = ("falcon", "gpt_neo")  # an external cache is an error for them
DRAFTED = {"gemma2": 1, "gemma3n": 3}  # one kind of masks; a layer that reads the keys of another one


@pytest.fixture(autouse=True)
def _deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are no programs have four layers."""
    for name, config in DEEP.items():
        monkeypatch.setitem(CONFIGS, name, config)


@pytest.fixture
def shallow(_deep: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of programs have two layers."""
    for name, config in SHALLOW.items():
        monkeypatch.setitem(CONFIGS, name, config)


def with_drafts(made: Any, directory: Path, kind: str | None, layers: int) -> Any:
    """The same model with a cache and the method `draft`."""
    from etplugins.transformers import huggingface

    made.config.save_pretrained(directory)
    kind = None if kind == "static" else kind  # as in plans
    settings = HuggingFace(
        model_class="AutoModelForCausalLM",
        config=ConfigFile(file="config.json", set={}),
        task="text-generation",
        cache=DecoderCache(max_length=SLOTS, max_seq_length=8, kind=kind),  # type: ignore[arg-type]
        attention="custom_sdpa" if kind == "custom" else None,
        draft_layers=layers,
    )
    context: Any = SimpleNamespace(inputs=Inputs(roots=[directory]))
    cached = huggingface.create(ModuleSource(huggingface=settings), context).eval()
    cached.load_state_dict(made.state_dict())
    return cached


def of_first_layers(made: Any, count: int) -> Any:
    """transformers' model of the first layers: a configuration of fewer, with as much of the weights as it takes."""
    config = copy.deepcopy(made.config)
    config.num_hidden_layers = count
    for key in ("layer_types", "activation_sparsity_pattern", "intermediate_size"):
        if isinstance(getattr(config, key, None), list):
            setattr(config, key, getattr(config, key)[:count])
    if getattr(config, "num_kv_shared_layers", 0):
        config.num_kv_shared_layers -= LAYERS - count
    smaller = type(made)._from_config(config, attn_implementation=made.config._attn_implementation).eval()
    weights = made.state_dict()
    for name, tensor in smaller.state_dict().items():  # a row of each layer's embedding follows the other
        tensor.copy_(weights[name][tuple(map(slice, tensor.shape))])
    return smaller


class Calls:
    """Calls the methods of a model in PyTorch, and holds its caches if it does not hold them."""

    def __init__(self, cached: Any) -> None:
        self.cached, spec = cached, getattr(cached, "etbuild_external", None)
        self.held = None if spec is None else dict(zip(spec.names, spec.example(1), strict=True))

    def __call__(self, method: str, ids: torch.Tensor, start: int) -> torch.Tensor:
        called: Callable[..., Any] = getattr(self.cached, method)
        if self.held is None:
            return called(ids, torch.tensor([start]))
        spec = self.cached.etbuild_drafts if method == "draft" else self.cached.etbuild_external
        window = getattr(self.cached.config, "sliding_window", None)
        at = torch.arange(start, start + ids.shape[1])
        masks = [mask(at, SLOTS, torch.float32, window if name.startswith("sliding") else None) for name in spec.masks]
        scores, *new = called(ids, at[None], [*masks, *(self.held[name] for name in spec.held)])
        for name, part in zip(spec.held, new, strict=True):
            self.held[name] = self.held[name].index_copy(2, at, part)
        return scores

    def keys(self) -> torch.Tensor:
        """The keys of the first layer for the tokens that a test drafts."""
        found = self.cached.key_cache_0 if self.held is None else self.held["key_cache_0"]
        return found[:, :, 8:11].clone()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            (name, kind)
            for name in MODELS
            for kind in ("static", "external")
            if kind == "static" or name not in KEYS_BY_PLACE
        ),
        ("llama", "custom"),
    ],
)
def test_a_draft_has_the_scores_of_the_first_layers(name: str, kind: str, tmp_path: Path) -> None:
    made, ids, count = model(name), tokens(16, vocab_size=VOCABULARY, seed=1), DRAFTED.get(name, 2)
    cached = with_drafts(made, tmp_path, kind, count)
    with torch.no_grad():
        whole, first = (each(input_ids=ids, use_cache=False).logits for each in (made, of_first_layers(made, count)))
        calls = Calls(cached)
        calls("forward", ids[:, :8], 0)
        drafted = torch.cat([calls("draft", ids[:, at : at + 1], at).reshape(1, 1, -1) for at in range(8, 11)], dim=1)
        keys = calls.keys() if kind != "custom" else None
        verified = calls("verify", ids[:, 8:], 8)
    largest = 1e-3 * float(whole.abs().max())
    torch.testing.assert_close(drafted, first[:, 8:11], rtol=1e-3, atol=largest)
    torch.testing.assert_close(verified, whole[:, 8:], rtol=1e-3, atol=largest)
    assert not torch.allclose(drafted, whole[:, 8:11], rtol=1e-2, atol=10 * largest)
    if keys is not None:  # `verify` writes the same again
        torch.testing.assert_close(calls.keys(), keys, rtol=1e-4, atol=1e-4)
        assert keys.abs().min() > 0


def test_a_draft_takes_the_caches_of_its_layers_and_their_masks(tmp_path: Path) -> None:
    cached = with_drafts(model("gemma2"), tmp_path, "external", 1)
    assert cached.etbuild_external.names[:2] == ["attention_mask", "sliding_attention_mask"]
    assert len(cached.etbuild_external.held) == 2 * LAYERS
    assert cached.etbuild_drafts.names == ["sliding_attention_mask", "key_cache_0", "value_cache_0"]


def test_a_draft_of_all_layers_is_an_error(tmp_path: Path) -> None:
    message = "model.huggingface.draft_layers: a draft of 4 layers saves nothing: the model has 4"
    with pytest.raises(InputError, match=message) as caught:
        with_drafts(model("llama"), tmp_path, "static", 4)
    assert caught.value.problems[0].hint == "write 3 or less"


def test_states_cannot_draft(tmp_path: Path) -> None:
    from etplugins.transformers import huggingface

    cached = with_drafts(model("mamba"), tmp_path, "external", 1)
    methods = {"forward": SimpleNamespace(entry="forward"), "guess": SimpleNamespace(entry="draft")}
    settings = HuggingFace(model_class="MambaForCausalLM", cache=DecoderCache(max_length=SLOTS), draft_layers=1)
    plan: Any = SimpleNamespace(model=ModuleSource(huggingface=settings), methods=methods, runner=None)
    with pytest.raises(InputError, match=r"methods\.guess: layers with states cannot go back"):
        huggingface.constants(plan, cached, Inputs(roots=[tmp_path]))


class _Layer(torch.nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 1


class _Counted(torch.nn.Module):
    """Runs as many layers as its configuration says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(map(_Layer, range(LAYERS)))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for index in range(LAYERS):
            hidden = self.layers[index](hidden)
        return hidden


class _Remembered(_Counted):
    """Runs the layers that it was made with."""

    def __init__(self) -> None:
        super().__init__()
        self.all = tuple(self.layers)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.all:
            hidden = layer(hidden)
        return hidden


class _Apart(torch.nn.Module):
    """Holds its layers one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_0, self.layer_1, self.layer_2, self.layer_3 = map(_Layer, range(LAYERS))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (_Counted, "its code reads what all layers give"),
        (_Remembered, r"its code runs the layers \[0, 1, 2, 3\]"),
        (_Apart, "it holds its 4 layers in 0 lists"),
    ],
)
def test_a_decoder_that_cannot_run_its_first_layers_is_an_error(kind: type[torch.nn.Module], reason: str) -> None:
    from etplugins.transformers import first_layers

    made = kind()

    def of_all(called: Any, hidden: torch.Tensor, _cache: Any, _position: torch.Tensor) -> torch.Tensor:
        return called(hidden)

    def draft() -> torch.Tensor:
        scores = first_layers.scores(made, SimpleNamespace(num_hidden_layers=LAYERS), 2, of_all)
        return scores(made, torch.zeros(1), None, torch.zeros(1))

    with pytest.raises(BuildError, match=f"cannot run its first layers only: {reason}"):
        draft()
    assert len([*made.children()]) == (1 if kind is not _Apart else LAYERS)
    assert not any(part._forward_pre_hooks for part in made.modules())


def drafting_model(name: str) -> Any:
    """A model whose second layer changes little, so that some drafts are right."""
    made = model(name)
    for part in (made.model.layers[1].self_attn.o_proj, made.model.layers[1].mlp.down_proj):
        part.weight.data *= 0.3
    return made


def project(directory: Path, name: str, cache: dict[str, Any], methods: list[str], **keys: Any) -> Path:
    """Writes a manifest without a runner, with its weights and its tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {key: value.clone() for key, value in drafting_model(name).state_dict().items()}
    save_file(weights, directory / "model.safetensors")
    tokenizer().save(str(directory / "tokenizer.json"))
    content = manifest(name, {"max_length": SLOTS, **cache}, methods={each: {} for each in methods}, **keys)
    del content["runner"]
    content["model"]["huggingface"]["draft_layers"] = 1
    path = directory / "model.yaml"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def built(shallow: None, shared_directory: Path) -> Path:
    """A Llama whose caller holds the cache."""

    def make(partial: Path) -> None:
        cache = {"max_seq_length": 8, "kind": "external"}
        path = project(partial, "llama", cache, ["forward", "decode", "verify", "draft"])
        commands.build(path, partial / "out", "--cache-dir", shared_directory / "cache-of-drafts")

    return made_once(shared_directory / "drafts", make)


def wanted(name: str, ids: torch.Tensor, count: int) -> list[int]:
    """The tokens that transformers writes after a text."""
    seen = torch.ones_like(ids)  # otherwise transformers hides the tokens that happen to be those of padding
    made = drafting_model(name)
    written = made.generate(ids, attention_mask=seen, max_new_tokens=count, do_sample=False, eos_token_id=None)
    text: list[int] = written[0, ids.shape[1] :].tolist()
    assert len({*text}) > 5  # otherwise a wrong cache could pass
    return text


def check_text(name: str, program: Path, scratch: Path) -> None:
    """Compares texts up to the end of the cache with those without drafts, and with transformers."""
    decoder = Decoder(program_files.read(program), scratch)
    drafts = decoder.drafts
    assert drafts is not None
    count = SLOTS + 1 - 20
    for seed in (3, 4):
        ids = tokens(20, vocab_size=VOCABULARY, seed=seed)
        expected = wanted(name, ids, count)
        for each in (drafts, None):
            decoder.drafts = each
            assert list(decoder.written(ids[0].tolist(), count + 5)) == expected
            assert decoder.held == [*ids[0].tolist(), *expected[:-1]]
    verified, drafted = drafts.calls["verify"], drafts.calls["draft"]
    assert verified < drafts.written <= 2 * count  # some were right
    assert drafts.written < drafted + verified  # and some were wrong


def test_drafts_of_a_cache_of_the_caller_give_the_same_text(built: Path, tmp_path: Path) -> None:
    check_text("llama", built / "out/net.pte", tmp_path)


def test_a_caller_may_stop_between_the_tokens_of_a_call(built: Path, tmp_path: Path) -> None:
    """The next text continues where the caller stopped, also if a call had confirmed more tokens."""
    decoder, ids = (
        Decoder(program_files.read(built / "out/net.pte"), tmp_path),
        tokens(9, vocab_size=VOCABULARY, seed=3),
    )
    text, expected = ids[0].tolist(), wanted("llama", ids, 12)
    for taken in range(1, 8):
        for _, token in zip(range(taken), decoder.written(text, 12), strict=False):
            assert token == expected[len(text) - 9]
            text.append(token)
        assert decoder.held == text[:-1]
        text = text[: 9 + min(taken, 5)]


def test_a_program_with_a_draft_has_no_more_weights_and_says_its_names(built: Path) -> None:
    report, index = (json.loads((built / f"out/net.{name}.json").read_text()) for name in ("report", "index"))
    assert report["sharing"]["duplicate_bytes"] == 0
    weights = (built / "model.safetensors").stat().st_size
    assert (built / "out/net.pte").stat().st_size < 1.3 * weights  # a layer is almost half of it
    described = index["interface"]["draft"]
    caches = ["key_cache_0", "value_cache_0"]
    given = ["input_ids", "position_ids", "attention_mask", *caches]
    assert [each["name"] for each in described["inputs"]] == given
    assert [each["name"] for each in described["outputs"]] == ["scores", *caches]
    assert [each["shape"] for each in described["inputs"][:3]] == [[1, 1], [1, 1], [1, 1, 1, SLOTS + 1]]
    assert len(index["interface"]["verify"]["inputs"]) == 3 + 2 * 2
    assert json.loads(report["constant_methods"]["get_draft_input_names"]) == given


def test_generate_says_how_many_calls_drafts_took(built: Path, shared_directory: Path) -> None:
    ids = tokenizer().encode("hello World and more text").ids
    expected = tokenizer().decode(wanted("llama", torch.tensor([ids]), 24), skip_special_tokens=False)
    command = ("generate", built / "model.yaml", "hello World and more text", "--tokens", "24", "-o", built / "out")
    ran = commands.etbuild(*command, "--cache-dir", shared_directory / "cache-of-drafts")
    assert ran.stdout.strip() == expected.strip()
    said = re.search(r"note: (\d+) tokens took (\d+) calls of `verify` and (\d+) calls of `draft`", ran.stderr)
    assert said is not None, ran.stderr
    written, verified, drafted = map(int, said.groups())
    assert verified < written <= 24
    assert written <= drafted + verified


def test_a_model_of_sentencepiece_reads_the_prompt_and_writes_the_text(built: Path, tmp_path: Path) -> None:
    """Only ExecuTorch's tokenizers read such a file. The model may write tokens that it does not have."""
    pieces = pytest.importorskip("sentencepiece")
    texts = iter(["hello World and more text, the quick brown fox jumps over the lazy dog 0123456789"] * 20)
    limits = {"vocab_size": VOCABULARY - 10, "hard_vocab_limit": False, "minloglevel": 2}
    pieces.SentencePieceTrainer.train(sentence_iterator=texts, model_prefix=str(tmp_path / "tokenizer"), **limits)
    file = str(tmp_path / "tokenizer.model")
    read = pieces.SentencePieceProcessor(model_file=file)
    decoder = Decoder(program_files.read(built / "out/net.pte"), tmp_path)
    found = "".join(continuation(decoder, file, "hello text", 16, 0))
    ids = [read.bos_id(), *read.encode("hello text")]
    expected = wanted("llama", torch.tensor([ids]), 16)
    known = [token for token in expected if token < read.get_piece_size()]
    assert len(known) > 5
    text = "".join(" " if token in (1, 2) else read.id_to_piece(token) for token in known)  # as it writes them
    assert found == text.replace("\u2581", " ")
    assert decoder.drafts is not None
    assert decoder.drafts.written > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind"),
    [("qwen", "static"), ("mistral", "ring")],
)
def test_drafts_in_the_memory_of_a_program_give_the_same_text(
    name: str, kind: str, shallow: None, tmp_path: Path
) -> None:
    cache = {"max_seq_length": 8, "kind": kind}
    path = project(tmp_path, name, cache, ["forward", "verify", "draft"], share_mutable_buffers=True)
    commands.build(path, tmp_path / "out")
    check_text(name, tmp_path / "out/net.pte", tmp_path)
