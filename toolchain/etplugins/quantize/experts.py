"""Quantizes the weights of a mixture's experts, which a model of transformers holds in parameters of three dimensions.

ExecuTorch's kernels for quantized embeddings look up rows in a table of 4 or 8 bits, and dequantize only these rows.
Here, a row is one expert.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torchao.core.config import AOBaseConfig
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxChooseQParamsAlgorithm
from torchao.quantization.transform_module import register_quantize_module_handler

_DIMENSIONS = 3  # of the weights of experts: experts, rows, columns


@dataclass
class QuantizeExperts(AOBaseConfig):  # type: ignore[misc]
    """A configuration of torchao for experts.

    Attributes:
        dtype: torch.int4 or torch.int8.
        group_size: The number of weights of a row that share a scale; None for the whole row.
        scales: torchao's name of the algorithm for scales; None for its default.
    """

    dtype: torch.dtype
    group_size: int | None
    scales: str | None


def is_experts(layer: torch.nn.Module) -> bool:
    """Whether a module holds the experts of a mixture, as transformers does."""
    return hasattr(layer, "is_transposed") and hasattr(layer, "num_experts") and bool(weights(layer))


def weights(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of the experts, each [experts, rows, columns], by the names of the parameters."""
    parameters = layer._parameters.items()
    return {name: weight for name, weight in parameters if weight is not None and weight.dim() == _DIMENSIONS}


class ExpertTable(torch.nn.Module):  # type: ignore[misc]
    """Quantized weights of experts. Indexing by experts returns their weights in the original dtype.

    Attributes:
        packed: The integers of each expert: uint8 [experts, values / 2] with two of 4 bits in a byte, or int8
            [experts, values].
        factors: The scales, [experts, groups].
    """

    packed: torch.Tensor
    factors: torch.Tensor

    def __init__(self, weight: torch.Tensor, config: QuantizeExperts) -> None:
        super().__init__()
        import executorch.kernels.quantized  # noqa: F401 - this and the next line register the operators
        from executorch.exir.passes import quant_fusion_pass  # noqa: F401

        self.shape, self.dtype, self.four_bits = tuple(weight.shape), weight.dtype, config.dtype == torch.int4
        rows = weight.detach().reshape(-1, weight.shape[-1])
        size = rows.shape[1] if config.group_size is None else config.group_size
        options = (
            {}
            if config.scales is None
            else {"intx_choose_qparams_algorithm": IntxChooseQParamsAlgorithm(config.scales)}
        )
        quantized = IntxUnpackedToInt8Tensor.from_hp(rows, (1, size), config.dtype, **options)
        integers = quantized.qdata.reshape(len(weight), -1)
        self.register_buffer("packed", _pairs(integers) if self.four_bits else integers.clone())
        self.register_buffer("factors", quantized.scale.reshape(len(weight), -1).to(torch.float32).contiguous())

    def __getitem__(self, experts: torch.Tensor) -> torch.Tensor:
        """The weights of experts, [n, rows, columns]. `experts` is int64 [n]."""
        kernels = torch.ops.quantized_decomposed
        look_up, limits = (kernels.embedding_4bit, (-8, 7)) if self.four_bits else (kernels.embedding_byte, (-128, 127))
        rows: torch.Tensor = look_up.dtype(self.packed, self.factors, None, *limits, experts, dtype=self.dtype)
        return rows.view(-1, *self.shape[1:])


def _pairs(integers: torch.Tensor) -> torch.Tensor:
    """Packs pairs of integers from -8 to 7 into bytes, the first integer in the upper bits."""
    positive = (integers + 8).to(torch.uint8)
    return positive[:, ::2] << 4 | positive[:, 1::2]


@register_quantize_module_handler(QuantizeExperts)  # type: ignore[untyped-decorator]
def _quantize(layer: torch.nn.Module, config: QuantizeExperts) -> torch.nn.Module:
    for name, weight in weights(layer).items():
        delattr(layer, name)
        setattr(layer, name, ExpertTable(weight, config))
    return layer
