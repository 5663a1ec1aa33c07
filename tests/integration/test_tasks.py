"""Tasks that have all of their input in one call: ExecuTorch's runtime says what transformers says."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import single_calls
from tests.helpers.random_tokens import tokens
from tests.helpers.runtime import run
from tests.integration.conftest import Build

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

VOCABULARY, LONGEST = 64, 36
_OF_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 38,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_DECODER = {**_OF_TEXT, "num_key_value_heads": 2, "head_dim": 8}
EMBEDDERS: dict[str, tuple[dict[str, Any], str]] = {
    "bert": (_OF_TEXT, "cls"),
    "roberta": (_OF_TEXT, "mean"),
    "mpnet": (_OF_TEXT, "mean"),
    "xlm-roberta": (_OF_TEXT, "cls"),
    "distilbert": ({"vocab_size": 64, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}, "mean"),
    "modernbert": ({**_OF_TEXT, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 8}, "mean"),
    "nomic_bert": (_OF_TEXT, "mean"),
    "qwen3": (_DECODER, "last"),
    "gemma3_text": ({**_DECODER, "use_bidirectional_attention": True, "sliding_window": 8}, "mean"),
}
_LENGTHS = (1, 2, 7, LONGEST)


def pooled(made: Any, text: torch.Tensor, pooling: str) -> torch.Tensor:
    """The embedding of a text as sentence-transformers computes it: with a mask of all tokens, and its length is 1."""
    with torch.no_grad():
        features = made(input_ids=text, attention_mask=torch.ones_like(text)).last_hidden_state
    mask = torch.ones_like(text).unsqueeze(-1).expand(features.shape).to(features.dtype)
    found = {
        "cls": lambda: features[:, 0],
        "last": lambda: features[:, -1],
        "mean": lambda: torch.sum(features * mask, 1) / torch.clamp(mask.sum(1), min=1e-9),
    }[pooling]()
    return torch.nn.functional.normalize(found, p=2, dim=1)


def embedder(name: str) -> tuple[Any, dict[str, Any]]:
    """The model of transformers, and the `model.huggingface` of its manifest."""
    own, pooling = EMBEDDERS[name]
    config = {"model_type": name, **own}
    wanted = {"task": "feature-extraction", "pooling": pooling, "normalize": True, "max_source_length": LONGEST}
    return single_calls.model("AutoModel", config), {"config": config, **wanted}


@pytest.mark.parametrize("name", EMBEDDERS)
def test_an_embedding_is_that_of_sentence_transformers(name: str, shared_directory: Path, tmp_path: Path) -> None:
    made, huggingface = embedder(name)
    program = single_calls.program(
        shared_directory / f"embedder-{name}", lambda folder: single_calls.folder_of(made, folder, huggingface)
    )
    texts = [tokens(length, VOCABULARY, seed=length) for length in _LENGTHS]
    [outputs] = run(program, [[("forward", [text]) for text in texts]], tmp_path)
    expected = [pooled(made, text, huggingface["pooling"]) for text in texts]
    for (actual,), wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    assert max(float(one @ other.T) for one, other in itertools.pairwise(expected)) < 0.999


def test_without_pooling_every_token_has_its_features(tmp_path: Path) -> None:
    made, huggingface = embedder("bert")
    wanted = {key: huggingface[key] for key in ("task", "config", "max_source_length")}
    program = single_calls.program(
        tmp_path / "program", lambda folder: single_calls.folder_of(made, folder, {"class": "BertModel", **wanted})
    )
    texts = [tokens(length, VOCABULARY, seed=length) for length in _LENGTHS]
    [outputs] = run(program, [[("forward", [text]) for text in texts]], tmp_path)
    with torch.no_grad():
        expected = [[made(input_ids=text).last_hidden_state] for text in texts]
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)


_T5 = {"model_type": "t5", "vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
_VIT = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32}
_FEATURES = {"task": "feature-extraction", "max_source_length": 8}
_MASKED = {"example_inputs": [{"shape": [1, 8], "dtype": "int64"}, {"shape": [1, 8], "dtype": "int64", "fill": "ones"}]}


@pytest.mark.parametrize(
    ("huggingface", "methods", "message"),
    [
        (
            {**_FEATURES, "config": {"model_type": "mpnet", **_OF_TEXT}, "max_source_length": 37},
            None,
            "max_source_length 37 is more than the 36 tokens that `MPNetModel` takes\n    write 36 or less",
        ),
        (
            {**_FEATURES, "config": {"model_type": "nomic_bert", **_OF_TEXT}, "max_source_length": 39},
            None,
            "max_source_length 39 is more than the 38 tokens that `NomicBertModel` takes\n    write 38 or less",
        ),
        (
            {**_FEATURES, "config": _T5},
            None,
            "`T5Model` is an encoder and a decoder, and `task: feature-extraction` calls one of them\n"
            "    name the class of the encoder, such as T5EncoderModel",
        ),
        (
            {**_FEATURES, "config": _VIT},
            None,
            "`ViTModel` takes `pixel_values`, and `task: feature-extraction` gives it tokens",
        ),
        (
            {**_FEATURES, "class": "BertForMaskedLM", "config": {"model_type": "bert", **_OF_TEXT}},
            None,
            "`task: feature-extraction` returns `last_hidden_state`, which the output of `BertForMaskedLM` lacks\n"
            "    leave out `class`: it is then `AutoModel`",
        ),
        (
            {**_FEATURES, "pooling": "mean", "config": {"model_type": "bert", **_OF_TEXT}},
            {"forward": _MASKED},
            "`forward` takes no mask of padding\n    give it tokens only, or write `pooling: none`",
        ),
    ],
)
def test_what_cannot_be_a_program_is_named(
    huggingface: dict[str, Any], methods: dict[str, Any] | None, message: str, build: Build
) -> None:
    keys = {} if methods is None else {"methods": methods}
    document = {"schema": "executorch-model/v1", "name": "net", "model": {"huggingface": huggingface}, **keys}
    outcome = build(json.dumps(document))
    assert outcome.code in (1, 2)
    assert message in outcome.err
    assert "Traceback" not in outcome.err
