"""Small language models, their tokenizer, and projects that build them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
VOCABULARY = 64
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567"
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1200,
    "tie_word_embeddings": False,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_OLDER = {key: value for key, value in SHAPE.items() if key not in ("intermediate_size", "num_key_value_heads")}
_XGLM = {key: value for key, value in _OLDER.items() if not key.startswith(("hidden", "num"))}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen": {"model_type": "qwen3", "head_dim": 16, **SHAPE},
    "mistral": {"model_type": "mistral", "sliding_window": 8, **SHAPE},
    "gemma": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 24,  # not the size of a head
        "layer_types": ["sliding_attention", "full_attention"],
        **SHAPE,
    },
    "opt": {"model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32, **_OLDER},
    "falcon": {"model_type": "falcon", "alibi": True, **_OLDER},
    "xglm": {"model_type": "xglm", "d_model": 32, "attention_heads": 4, "num_layers": 2, "ffn_dim": 64, **_XGLM},
    "gpt_oss": {"model_type": "gpt_oss", "head_dim": 16, "sliding_window": 8, "num_local_experts": 4, **SHAPE},
}
CONFIGS["jetmoe"] = {
    "model_type": "jetmoe",
    "kv_channels": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    **{key: value for key, value in SHAPE.items() if key != "num_attention_heads"},
}
CONFIGS["llama4"] = {
    "model_type": "llama4_text",
    "head_dim": 8,
    "attention_chunk_size": 8,
    "intermediate_size_mlp": 64,
    "no_rope_layer_interval": 2,
    "floor_scale": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    **SHAPE,
}
CONFIGS["deepseek_v2"] = {
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    **{key: value for key, value in SHAPE.items() if key != "num_key_value_heads"},
}
CONFIGS["gemma3n"] = {
    "model_type": "gemma3n_text",
    "head_dim": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "laurel_rank": 8,
    **SHAPE,
    "num_hidden_layers": 4,
}
_COUNTS = {"num_layers": 2, "num_heads": 4, "hidden_size": 32, "vocab_size": VOCABULARY}
CONFIGS["gpt_neo"] = {
    "model_type": "gpt_neo",
    "attention_types": [[["global", "local"], 1]],
    "window_size": 8,
    "max_position_embeddings": 64,
    **_COUNTS,
}
CONFIGS["mpt"] = {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 96}
CONFIGS["mpt"] |= {"vocab_size": VOCABULARY, **{key: SHAPE[key] for key in SHAPE if key.endswith("_id")}}
CONFIGS["gpt_neo"] |= {key: SHAPE[key] for key in SHAPE if key.endswith("_id")}
CONFIGS["dynamic"] = {"model_type": "llama", **SHAPE, "max_position_embeddings": 64}
CONFIGS["dynamic"]["rope_parameters"] = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
_ROBERTA = {"is_decoder": True, "intermediate_size": 64, **_OLDER, "max_position_embeddings": 66, "pad_token_id": 1}
CONFIGS["roberta"] = {"model_type": "roberta", **_ROBERTA, "eos_token_id": 0}
CONFIGS["data2vec"] = {"model_type": "data2vec-text", **_ROBERTA, "pad_token_id": 0}
CONFIGS["inkling"] = {
    "model_type": "inkling_text",
    "layer_types": ["hybrid_sliding", "hybrid"],
    "mlp_layer_types": ["dense", "sparse"],
    "head_dim": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    **SHAPE,
}
CONFIGS["recurrent_gemma"] = {
    "model_type": "recurrent_gemma",
    "block_types": ["recurrent", "attention"],
    "attention_window_size": 8,
    "conv1d_width": 4,
    **{key: SHAPE[key] for key in SHAPE if key != "max_position_embeddings"},
}
CONFIGS["mixture"] = {
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    **SHAPE,
    "hidden_size": 128,
    "num_hidden_layers": 1,
}
_HYBRID = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 16, **SHAPE}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}
_TOKENS = {key: value for key, value in SHAPE.items() if key.endswith("_id")}
_STATE_SPACE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, **_TOKENS}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
STATES: dict[str, dict[str, Any]] = {
    "lfm2": {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], **SHAPE},
    "lfm2_moe": {
        "model_type": "lfm2_moe",
        "layer_types": ["conv", "full_attention"],
        "num_dense_layers": 1,
        **_EXPERTS,
        **SHAPE,
    },
    "qwen3_5": {"model_type": "qwen3_5_text", **_DELTA, **_HYBRID},
    "qwen3_next": {
        "model_type": "qwen3_next",
        "shared_expert_intermediate_size": 32,
        **_EXPERTS,
        **_DELTA,
        **_HYBRID,
    },
    "olmo_hybrid": {"model_type": "olmo_hybrid", **_DELTA, **_HYBRID},
    "mamba": {"model_type": "mamba", "time_step_rank": 4, **_STATE_SPACE},
    "falcon_mamba": {"model_type": "falcon_mamba", "time_step_rank": 4, **_STATE_SPACE},
    "mamba2": {"model_type": "mamba2", "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 16, **_STATE_SPACE},
    "bamba": {"model_type": "bamba", "attn_layer_indices": [1], **_MAMBA2, **SHAPE},
    "jamba": {
        "model_type": "jamba",
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        **SHAPE,
    },
    "falcon_h1": {"model_type": "falcon_h1", "mamba_d_ssm": 64, "head_dim": 8, **_MAMBA2, **SHAPE},
    "granite": {
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        **_MAMBA2,
        **SHAPE,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        "layers_block_type": ["mamba", "mlp", "attention", "moe"],
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 16,
        "head_dim": 8,
        **SHAPE,
    },
}
"""Models whose layers keep states, or some of them."""
CONFIGS |= STATES
CACHES: dict[str, dict[str, Any]] = {
    "static": {"max_length": 64},
    "custom": {"max_length": 64, "max_seq_length": 16, "kind": "custom"},
    "long": {"max_length": 1100, "max_seq_length": 16, "kind": "custom"},  # longer than a block of the operator
    "ring": {"max_length": 64, "max_seq_length": 16, "kind": "ring"},
    "quantized": {"max_length": 64, "max_seq_length": 16, "kind": "quantized"},
}


def model(name: str) -> Any:
    """A model of transformers whose scores are far from zero and from each other."""
    config = transformers.AutoConfig.for_model(**CONFIGS[name])
    attention = "sdpa" if name == "falcon" else "eager"  # Falcon's eager attention adds its biases twice
    with torch.random.fork_rng():
        torch.manual_seed(5)  # some parameters of one dimension are random, such as attention sinks
        made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn(parameter.shape, generator=numbers) / 2
    return made


def tokenizer(letters: str = LETTERS) -> Any:
    words = {"<unk>": 0, "</s>": 1, "<s>": 2, "Ġ": 3, **{letter: 4 + i for i, letter in enumerate(letters)}}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<unk>", "</s>", "<s>"])
    return made


def manifest(name: str, cache: dict[str, Any], **keys: Any) -> dict[str, Any]:
    huggingface = {"task": "text-generation", "config": CONFIGS[name], "cache": cache}
    return {
        "schema": "executorch-model/v1",
        "name": "net",
        "runner": "executorch-llm/v1",
        "tokenizer": "tokenizer.json",
        "model": {"huggingface": huggingface, "weights": "model.safetensors"},
        "defaults": {"partitioners": ["xnnpack"]},
        **keys,
    }


def project(directory: Path, name: str, cache: dict[str, Any], **keys: Any) -> Path:
    """Writes a manifest with its weights and tokenizer, and returns the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file({key: value.clone() for key, value in model(name).state_dict().items()}, directory / "model.safetensors")
    tokenizer().save(str(directory / "tokenizer.json"))
    path = directory / "model.yaml"
    path.write_text(json.dumps(manifest(name, cache, **keys)))
    return path
