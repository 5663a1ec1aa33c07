"""Which models may have a cache: those whose tokens do not attend to later ones."""

from __future__ import annotations

import pytest

from etbuild.errors import InputError

transformers = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("config", "model", "options", "can"),
    [
        ("BertConfig", "BertLMHeadModel", {}, False),
        ("BertConfig", "BertLMHeadModel", {"is_decoder": True}, True),
        ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}, True),  # only its configuration has `is_decoder: false`
        ("LlamaConfig", "LlamaForCausalLM", {}, True),
        ("Gemma3TextConfig", "Gemma3ForCausalLM", {"use_bidirectional_attention": True}, False),
        ("Gemma3TextConfig", "Gemma3ForCausalLM", {}, True),
    ],
)
def test_a_model_whose_tokens_see_later_ones_has_no_cache(
    config: str, model: str, options: dict[str, bool], can: bool
) -> None:
    from etplugins.transformers import decoder_cache
    from etplugins.transformers.parts import DecoderCache

    made = getattr(transformers, model)(getattr(transformers, config)(**SIZES, **options))
    cache = DecoderCache(max_length=16)
    if can:
        decoder_cache._check(made, made.config, cache)
    else:
        with pytest.raises(InputError, match="attends to those after it"):
            decoder_cache._check(made, made.config, cache)
