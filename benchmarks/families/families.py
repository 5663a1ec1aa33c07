"""Families of models in transformers, each as a tiny model with random weights.

No family has a configuration of its own here. `tiny` takes the default configuration of a family and makes what it
counts small: the keys of `_SMALL`, by their own name or by the name that the family has for them.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.helpers.language_models import VOCABULARY, tokenizer

POSITIONS = 256
PROMPT = "hello World and more text"
TOKENS = 48
_MOST_PARAMETERS = 20_000_000
_SEEDS = 20
_SCALES = (0.3, 0.1, 0.03)  # of weights: large ones say the same token again and again behind a soft cap
_DIFFERENT_TOKENS = 5  # a text of fewer tokens could hide a wrong cache
_OPTIONAL = ("num_kv_shared_layers",)  # 0: the family has nothing of this kind
_SPECIAL = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
_SMALL: dict[str, int] = {
    "attention_chunk_size": 16,
    "d_model": 64,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "decoder_layers": 2,
    "embedding_size": 64,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "encoder_hash_byte_group_vocab": VOCABULARY,
    "encoder_layers": 2,
    "ffn_dim": 64,
    "ffn_hidden_size": 64,
    "first_k_dense_replace": 1,
    "global_head_dim": 32,
    "head_dim": 16,
    "hidden_size": 64,
    "hidden_size_per_layer_input": 16,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "index_topk": 512,
    "intermediate_size": 64,
    "intermediate_size_mlp": 64,
    "kv_lora_rank": 16,
    "kv_n_heads": 2,
    "laurel_rank": 16,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "max_seq_len": POSITIONS,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 4,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_kv_shared_layers": 1,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "query_pre_attn_scalar": 24,  # not the size of a head
    "shared_expert_intermediate_size": 32,
    "sliding_window": 16,
    "topk_group": 1,
    "v_head_dim": 16,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "word_embed_proj_dim": 64,
}


_LAYERS = (2, 3, 4, 5, 6, 8)
_CHANGES: tuple[dict[str, int], ...] = (
    {},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 4, "head_dim": 16},
    {"rotary_dim": 8},
    {"num_experts_per_tok": 1},
    {"num_heads": 8, "state_size": 16},
    {
        "num_key_value_heads": 4,
        "num_experts_per_tok": 2,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
    },
)
"""What is tried for a family whose code does not take the sizes of `_SMALL`."""
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
}
"""What no other value can say: a list whose length is the number of layers, and a key that only checkpoints have."""


def decoders() -> dict[str, str]:
    """The class of each family of decoders."""
    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny(cls: Any, family: str, **changes: Any) -> Any:
    """The configuration of a tiny model of a family, with as few layers as show each kind of layer.

    Args:
        cls: The class of the configuration: a family with images has one of its own for its decoder.
        family: The `model_type`.
        changes: Values in place of those of `_SMALL`, for keys that the family has.
    """
    defaults = cls().to_dict()
    values = _small(cls(), defaults, changes)
    values |= {"is_decoder": True} if "is_decoder" in defaults else {}
    values |= _OF_FAMILY.get(family, {})
    for count in _LAYERS if _kinds(cls()) else []:
        layers = {cls.attribute_map.get("num_hidden_layers", "num_hidden_layers"): count}
        made = _made(cls, {**values, **layers}, count)
        owning = count - (getattr(made, "num_kv_shared_layers", None) or 0)  # layers at the end share keys of others
        if set(_kinds(made)[:owning]) == set(_kinds(cls())):
            return made
    return cls(**values, **_SPECIAL)


def _small(config: Any, defaults: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The values of `_SMALL` and of `changes` for a configuration and for those within it.

    `num_kv_shared_layers` stays 0 where it is: such a family has no layers that share.
    """
    names = config.attribute_map
    own = {names.get(key, key): small for key, small in (_SMALL | changes).items()}
    asked = {names.get(key, key) for key in changes}
    values: dict[str, Any] = {
        key: small
        for key, small in own.items()
        if (_counts(defaults.get(key)) and (key not in _OPTIONAL or defaults[key])) or key in asked & {*defaults}
    }
    parts = {key: part for key, part in vars(config).items() if isinstance(part, PreTrainedConfig)}
    return values | {key: {**part.to_dict(), **_small(part, part.to_dict(), changes)} for key, part in parts.items()}


def _counts(value: Any) -> bool:
    """Whether a value is a number, or one for each layer."""
    return isinstance(value, int) or (
        isinstance(value, list) and value != [] and all(isinstance(each, int) for each in value)
    )


def _made(cls: Any, values: dict[str, Any], count: int) -> Any:
    """A configuration with a number of layers. Some have a list of their kinds by default, which is then too long."""
    try:
        return cls(**values, **_SPECIAL)
    except Exception as error:  # transformers checks a configuration with errors of several classes
        if "layer_types" not in str(error):
            raise
        return cls(**values, **_SPECIAL, layer_types=_kinds(cls())[:count])


def _kinds(config: Any) -> list[str]:
    return list(getattr(config, "layer_types", None) or [])


def model(family: str, cls: str, seed: int) -> Any:
    """A tiny model of a family, which takes tokens. Its weights are random, and so large that the scores are far from
    each other.

    Raises the last error if no configuration in `_CHANGES` makes one.
    """
    for changes in _CHANGES:
        try:
            kind = getattr(transformers, cls)
            made = _random(kind, tiny(kind.config_class, family, **changes), seed)
            greedy(made, [5, 6, 7], 1)
        except Exception as error:  # noqa: BLE001 - any error says that these sizes do not fit each other
            last = error
        else:
            return made
    raise last


def _random(cls: Any, config: Any, seed: int) -> Any:
    with torch.device("meta"):
        size = sum(each.numel() for each in cls(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"the model has {size} parameters, and cannot be made smaller")
    torch.manual_seed(seed)
    made = cls._from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_().mul_(_SCALES[seed % len(_SCALES)])
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def greedy(made: Any, ids: list[int], count: int) -> tuple[list[int], list[float]]:
    """The tokens that a model says after others, without a cache, and how far the next best score is for each."""
    tokens, margins = list(ids), []
    with torch.no_grad():
        for _ in range(count):
            scores = made(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
            best, next_best = scores.topk(2).values.tolist()
            margins.append((best - next_best) / float(scores.abs().max()))
            tokens.append(int(scores.argmax()))
    return tokens[len(ids) :], margins


def write(family: str, cls: str, folder: Path) -> dict[str, Any]:
    """Writes a tiny model to a folder as a hub has it, and returns what it says after `PROMPT`.

    The weights are those of the first seed with a text that has several different tokens and does not end.
    """
    ids = tokenizer().encode(PROMPT).ids
    for seed in range(_SEEDS):
        made = model(family, cls, seed)
        tokens, margins = greedy(made, ids, TOKENS)
        if len(set(tokens)) >= _DIFFERENT_TOKENS and not set(tokens) & set(_SPECIAL.values()):
            break
    made.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps(_SPECIAL))
    return {"tokens": tokens, "margins": margins, "seed": seed, "different": len(set(tokens))}


def common(one: list[int], other: list[int]) -> int:
    """The number of tokens at the start that two texts share."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
