"""Weights from GGUF files, with the names, the layout and the blocks of llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etplugins.packed import gguf_blocks, gguf_file
from tests.helpers.runtime import run
from tests.integration.conftest import Build

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers and gguf

HEADS, KEY_HEADS = 4, 2
CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.0.input_layernorm": "blk.0.attn_norm",
    "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    "model.layers.0.self_attn.q_proj": "blk.0.attn_q",
    "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
    "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
    "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
    "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate",
    "model.layers.0.mlp.up_proj": "blk.0.ffn_up",
    "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
}


def model() -> Any:
    made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**CONFIG)).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=numbers) / 2
    return made


def paired(rows: Any, heads: int) -> Any:
    """The rows of a projection in llama.cpp's order for Llama, whose rotations turn neighbours and not halves."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write(path: Path, module: Any, leave_out: str = "", title: str = "Llama 3", four: str = "nothing") -> Any:
    """Writes a model of transformers as llama.cpp does, its matrices in blocks of 8 bits; in blocks of 4 bits those
    whose name has `four` in it.

    Returns the model with the weights that are in the file.
    """
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(title)
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(64)
    writer.add_token_list(["a", "b"])
    for name, parameter in module.named_parameters():
        layer = name.removesuffix(".weight")
        rows = parameter.detach().numpy()
        if rows.ndim == 1:
            stored, kind = rows, gguf.GGMLQuantizationType.F32
        else:
            kind = gguf.GGMLQuantizationType.Q4_0 if four in name else gguf.GGMLQuantizationType.Q8_0
            stored = gguf.quantize(rows, kind)
            parameter.data = torch.from_numpy(gguf.dequantize(stored, kind).copy())
        heads = {"q_proj": HEADS, "k_proj": KEY_HEADS}.get(layer.rpartition(".")[2])
        stored = stored if heads is None else paired(stored, heads)
        if layer != leave_out:
            writer.add_tensor(f"{NAMES[layer]}.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return module


def manifest(kind: str = "AutoModelForCausalLM", **config: Any) -> str:
    inputs = [{"shape": [1, 8], "dtype": "int64", "fill": "zeros"}]
    huggingface = {"class": kind, "config": {**CONFIG, **config}}
    return json.dumps(
        {
            "schema": "executorch-model/v1",
            "name": "net",
            "model": {"huggingface": huggingface, "weights": "net.gguf"},
            "defaults": {"partitioners": ["xnnpack"]},
            "methods": {"forward": {"example_inputs": inputs}},
        }
    )


def test_a_quantized_file_of_llama_cpp_gives_the_scores_of_its_model(build: Build, tmp_path: Path) -> None:
    module = write(tmp_path / "net.gguf", model())
    built = build(manifest(), files={"net.gguf": (tmp_path / "net.gguf").read_bytes()})
    assert built.code == 0, built.err
    ids = torch.arange(3, 11)[None]
    [[[actual]]] = run(built.directory / "net.pte", [[("forward", [ids])]], tmp_path)
    with torch.no_grad():
        expected = module(input_ids=ids).logits
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    distributions = built.json("net.index.json")["inputs"]["toolchain"]["distributions"]
    assert "gguf" in distributions


def test_a_file_that_does_not_fit_is_an_error(build: Build, tmp_path: Path) -> None:
    write(tmp_path / "net.gguf", model(), leave_out="model.norm")
    content = (tmp_path / "net.gguf").read_bytes()
    built = build(manifest(), files={"net.gguf": content})
    assert built.code == 2
    assert "parameter `model.norm.weight` float32[32] is missing in `net.gguf`" in built.err
    built = build(manifest(model_type="qwen3", head_dim=8), files={"net.gguf": content})
    assert built.code == 2
    assert "its `model_type` is llama, and that of the configuration is qwen3" in built.err
    built = build(manifest(rms_norm_eps=0.1), files={"net.gguf": content})
    assert built.code == 2
    assert "and that of the configuration is 0.1" in built.err
    built = build(manifest(num_attention_heads=8), files={"net.gguf": content})
    assert built.code == 2
    assert "its `num_attention_heads` is 4, and that of the configuration is 8" in built.err
    built = build(manifest(), files={"net.gguf": content[:-100]})
    assert built.code == 2
    assert "cannot read `net.gguf`: it has" in built.err


def test_a_mistral_without_a_window_is_read_as_a_llama(build: Build, tmp_path: Path) -> None:
    """llama.cpp calls it so, and transformers has no names for it."""
    write(tmp_path / "net.gguf", model(), title="Mistral 7B")
    files = {
        "net.gguf": (tmp_path / "net.gguf").read_bytes(),
        "config.json": json.dumps({**CONFIG, "model_type": "mistral", "sliding_window": None}).encode(),
    }
    built = build(manifest(model_type="mistral", sliding_window=None), files=files)
    assert built.code == 2
    assert "transformers reads no weights of a `mistral` model from GGUF files" in built.err
    assert "write `config: {file: ..., set: {model_type: llama}}`" in built.err
    data = json.loads(manifest())
    data["model"]["huggingface"]["config"] = {"file": "config.json", "set": {"model_type": "llama"}}
    built = build(json.dumps(data), files=files)
    assert built.code == 0, built.err


@pytest.mark.parametrize(("kind", "size"), [("Q4_0", 18), ("Q6_K", 210), ("Q8_0", 34)])
def test_blocks_of_integers_are_what_llama_cpp_computes_with(kind: str, size: int) -> None:
    numbers = np.random.default_rng(3)
    blocks = numbers.integers(0, 256, (6, 4, size), np.uint8)
    scale = numbers.normal(size=(6, 4)).astype(np.float16)
    at = size - 2 if kind == "Q6_K" else 0
    blocks[..., at : at + 2] = scale[..., None].view(np.uint8)
    found = gguf_blocks.integers(kind, blocks.reshape(6, -1))
    assert found is not None
    expected = gguf.dequantize(blocks.reshape(6, -1), gguf.GGMLQuantizationType[kind])
    assert torch.equal(found.dequantized(), torch.from_numpy(expected))


def test_blocks_that_xnnpack_and_embeddings_can_hold_are_kept(build: Build, tmp_path: Path) -> None:
    module = write(tmp_path / "net.gguf", model(), four="embed")
    data = json.loads(manifest())
    data["defaults"]["quantize"] = {"torchao": [{"config": "packed", "layers": ["linear", "embedding"]}]}
    built = build(json.dumps(data), files={"net.gguf": (tmp_path / "net.gguf").read_bytes()})
    assert built.code == 0, built.err
    assert "note: 8 packed weights keep their integers, and 1 are dequantized" in built.err
    assert "8 bits and groups of 32, and XNNPACK's groups have 4 bits: `model.layers.0.mlp.down_proj" in built.err
    ids = torch.arange(3, 11)[None]
    [[[actual]]] = run(built.directory / "net.pte", [[("forward", [ids])]], tmp_path)
    with torch.no_grad():
        expected = module(input_ids=ids).logits
    assert float((actual - expected).abs().max() / (expected.max() - expected.min())) < 0.02  # of activations in 8 bits


def test_the_experts_of_a_mixture_are_joined_as_transformers_does(tmp_path: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = {**CONFIG, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}
    config |= {"moe_intermediate_size": 64, "head_dim": 8, "decoder_sparse_step": 1, "mlp_only_layers": []}
    module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    writer = gguf.GGUFWriter(str(tmp_path / "net.gguf"), "qwen3moe")
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_vocab_size(64)
    numbers = np.random.default_rng(3)
    for name, shape in {"gate": (4, 64, 32), "up": (4, 64, 32), "down": (4, 32, 64)}.items():
        blocks = gguf.quantize(numbers.normal(size=shape).astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"blk.0.ffn_{name}_exps.weight", blocks, raw_dtype=kind)
    writer.add_tensor("token_embd.weight", numbers.normal(size=(64, 32)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    opened = gguf_file.opened("net.gguf", tmp_path / "net.gguf", (), module)
    expected = load_gguf_checkpoint(str(tmp_path / "net.gguf"), return_tensors=True, model_to_load=module)["tensors"]
    assert {*opened.names} == expected.keys()
    assert any(name.endswith("gate_up_proj") for name in opened.names)
    for name in opened.names:
        assert opened.form(name) == ("float32", list(expected[name].shape))
        assert torch.equal(opened.content(name), expected[name])
