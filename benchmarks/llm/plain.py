"""The script that a user of transformers and ExecuTorch would write instead of model.yaml.

    python benchmarks/llm/plain.py CHECKPOINT LENGTH OUT

It uses ExecuTorch's attention and caches, and torchao's quantization. LENGTH is the number of tokens that the cache
holds. OUT is the .pte.
"""

import sys
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - operators of quantized embeddings
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.examples.models.llama.source_transformation.custom_kv_cache import CustomKVCache
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - operators of attention and caches
from torch import Tensor
from torch.export import Dim, export
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerAxis, PerGroup
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.cache_utils import Cache, CacheLayerMixin

CHECKPOINT, LENGTH, OUT = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
SCALES = {"intx_choose_qparams_algorithm": "hqq_scale_only"}


def attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, **others: Any
) -> tuple[Tensor, None]:
    """query: [1, heads, seq, size]; key and value: [1, positions, heads, size] -> [1, seq, heads, size]"""
    start = others["position_ids"][0, 0].item()
    return torch.ops.llama.custom_sdpa(query.transpose(1, 2), key, value, start, None, 0.0, True, scaling), None


class Layer(CacheLayerMixin):
    """A layer of transformers' cache, with a cache of ExecuTorch."""

    is_compileable = True

    def __init__(self, store: Any, position: Tensor) -> None:
        super().__init__()
        self.store, self.position = store, position
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The buffers exist."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """key_states and value_states: [1, heads, seq, size]"""
        self.store.update(self.position, key_states, value_states)
        return self.store.k_cache, self.store.v_cache

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of positions, and the first one."""
        return LENGTH, 0

    def get_seq_length(self) -> Tensor:
        """The number of tokens before this call."""
        return self.position[0]

    def get_max_length(self) -> int:
        """The number of positions."""
        return LENGTH


class Decoder(torch.nn.Module):
    """A decoder with its caches in buffers."""

    def __init__(self) -> None:
        super().__init__()
        AttentionInterface.register("custom", attention)
        AttentionMaskInterface.register("custom", lambda **others: None)  # the operator's own mask is causal
        dtype = torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype, attn_implementation="custom")
        config = self.model.config
        heads = config.num_key_value_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers = range(config.num_hidden_layers)
        self.caches = torch.nn.ModuleList(CustomKVCache(1, LENGTH, heads, size, dtype) for _ in layers)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """tokens: int64 [1, seq]; position: int64 [1], of the first token -> scores of the last one, [1, vocabulary]"""
        cache = Cache(layers=[Layer(store, position) for store in self.caches])
        positions = (torch.arange(tokens.shape[1]) + position).unsqueeze(0)
        given = {"position_ids": positions, "past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        return self.model(input_ids=tokens, **given).logits[:, -1]


def runner_constants(config: Any) -> dict[str, Any]:
    """What ExecuTorch's runner asks a program for."""
    return {
        "enable_dynamic_shape": True,
        "get_bos_id": config.bos_token_id,
        "get_eos_ids": [config.eos_token_id],
        "get_max_context_len": LENGTH,
        "get_max_seq_len": LENGTH,
        "get_n_layers": config.num_hidden_layers,
        "get_vocab_size": config.vocab_size,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": True,
    }


def main() -> None:
    """Writes the program."""
    decoder = Decoder().eval().requires_grad_(False)
    embeddings = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0), **SCALES)
    quantize_(decoder, embeddings, lambda module, name: isinstance(module, torch.nn.Embedding))
    linears = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32), **SCALES)
    quantize_(decoder, linears)
    example = torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    exported = export(decoder, example, dynamic_shapes=({1: Dim("seq", max=LENGTH)}, None))
    edge = to_edge_transform_and_lower(
        {"forward": exported},
        partitioner=[XnnpackPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
        constant_methods=runner_constants(decoder.model.config),
    )
    config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(), do_quant_fusion_and_const_prop=True)
    with OUT.open("wb") as file:
        edge.to_executorch(config).write_to_file(file)


if __name__ == "__main__":
    main()
