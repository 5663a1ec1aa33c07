"""Writes checkpoints as the libraries do that pack weights, by the formulas of their formats. Nothing here is the
driver's: weights are made of integers, which are packed in one way and multiplied in another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

Array = np.ndarray[Any, Any]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "dtype": "float16",
}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass(frozen=True)
class Packed:
    """The stored tensors of a layer, by the ends of their names, and the weight that they stand for. `values` and
    `scales` are those of symmetric integers."""

    tensors: Mapping[str, torch.Tensor]
    weight: torch.Tensor
    values: torch.Tensor | None = None
    scales: torch.Tensor | None = None


Pack = Callable[[torch.Tensor], Packed]


def words(numbers: Array, bits: int, gaps: bool = False) -> torch.Tensor:
    """The numbers of each row in words of 32 bits, one bit after the other, the lowest first. `gaps`: no number
    begins in one word and ends in the next one."""
    rows, columns = numbers.shape
    if gaps and 32 % bits:
        per_word = 32 // bits
        numbers = np.pad(numbers, ((0, 0), (0, -columns % per_word))).astype(np.uint32).reshape(rows, -1, per_word)
        shifted = numbers << (np.arange(per_word, dtype=np.uint32) * bits)
        return torch.from_numpy(np.bitwise_or.reduce(shifted, -1).astype(np.uint32).view(np.int32).copy())
    stream = (numbers.astype(np.uint32)[:, :, None] >> np.arange(bits, dtype=np.uint32)) & 1
    stream = stream.reshape(rows, columns * bits)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32))).reshape(rows, -1, 32).astype(np.uint64)
    found = (stream << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32)
    return torch.from_numpy(found.view(np.int32).copy())


def integers(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> tuple[Array, ...]:
    """Integers without a sign, scales in 16 bits and zero points, each `[rows, groups]` or `[rows, columns]`. A group
    of 0 is the whole row."""
    rows, columns = weight.shape
    group = group or columns
    grouped = weight.detach().float().numpy().reshape(rows, columns // group, group)
    low, high = np.minimum(grouped.min(-1), 0), np.maximum(grouped.max(-1), 0)
    middle, top = 1 << (bits - 1), (1 << bits) - 1
    if symmetric:
        scales = (np.maximum(-low, high) / (middle - 1)).astype(np.float16)
        zeros = np.full(scales.shape, middle)
    else:
        scales = ((high - low) / top).astype(np.float16)
        zeros = np.clip(np.round(-low / scales.astype(np.float32)), 0, top).astype(int)
    values = np.round(grouped / scales.astype(np.float32)[..., None]) + zeros[..., None]
    return np.clip(values, 0, top).astype(int).reshape(rows, columns), scales, zeros


def product(values: Array, scales: Array, zeros: Array, index: Array) -> torch.Tensor:
    """The weight in float32. `index` is the group of each column."""
    found = (values - zeros[:, index]) * scales.astype(np.float32)[:, index]
    return torch.from_numpy(found.astype(np.float32))


def symmetric_parts(values: Array, scales: Array, bits: int) -> dict[str, torch.Tensor]:
    signed = torch.from_numpy((values - (1 << (bits - 1))).astype(np.int8))
    return {"values": signed, "scales": torch.from_numpy(scales.astype(np.float32))}


def gptq(bits: int = 4, group: int = 32, symmetric: bool = True, order: bool = False, version: int = 1) -> Pack:
    def pack(weight: torch.Tensor) -> Packed:
        values, scales, zeros = integers(weight, bits, group, symmetric)
        columns = values.shape[1]
        index = np.arange(columns) // (group or columns)
        if order:
            index = np.random.default_rng(columns).permutation(index)
        tensors = {
            ".qweight": words(values.T.copy().T, bits).T.contiguous(),
            ".qzeros": words(np.bitwise_and(zeros.T - (version == 1), (1 << bits) - 1), bits),
            ".scales": torch.from_numpy(scales.T.copy()),
            ".g_idx": torch.from_numpy(index.astype(np.int32)),
        }
        kept = symmetric_parts(values, scales, bits) if symmetric and not order else {}
        return Packed(tensors, product(values, scales, zeros, index), **kept)

    return pack


def awq(group: int = 32, symmetric: bool = False) -> Pack:
    def pack(weight: torch.Tensor) -> Packed:
        values, scales, zeros = integers(weight, 4, group, symmetric)

        def shuffled(numbers: Array) -> torch.Tensor:
            return words(numbers.reshape(len(numbers), -1, 8)[..., AWQ_ORDER].reshape(numbers.shape), 4)

        tensors = {
            ".qweight": shuffled(values.T),
            ".qzeros": shuffled(zeros.T),
            ".scales": torch.from_numpy(scales.T.copy()),
        }
        index = np.arange(values.shape[1]) // group
        kept = symmetric_parts(values, scales, 4) if symmetric else {}
        return Packed(tensors, product(values, scales, zeros, index), **kept)

    return pack


def compressed(bits: int = 4, group: int = 32, symmetric: bool = True, gaps: bool = False) -> Pack:
    """compressed-tensors: `pack-quantized`. `gaps`: in the words of its releases before 0.18."""

    def pack(weight: torch.Tensor) -> Packed:
        values, scales, zeros = integers(weight, bits, group, symmetric)
        tensors = {
            ".weight_packed": words(values, bits, gaps),
            ".weight_scale": torch.from_numpy(scales),
            ".weight_shape": torch.tensor(values.shape),
        }
        if not symmetric:
            tensors[".weight_zero_point"] = words(zeros.T, bits, gaps).T
        index = np.arange(values.shape[1]) // (group or values.shape[1])
        kept = symmetric_parts(values, scales, bits) if symmetric else {}
        return Packed(tensors, product(values, scales, zeros, index), **kept)

    return pack


def eight_bits(weight: torch.Tensor) -> Packed:
    """compressed-tensors: `int-quantized`, with a scale for each row."""
    values, scales, zeros = integers(weight, 8, 0, True)
    kept = symmetric_parts(values, scales, 8)
    tensors = {".weight": kept["values"], ".weight_scale": torch.from_numpy(scales)}
    return Packed(tensors, product(values, scales, zeros, np.zeros(values.shape[1], int)), **kept)


def fp8(height: int, width: int, name: str = ".weight_scale_inv") -> Pack:
    """Floats of 8 bits, with a scale for each block. A size of 0 is the whole weight."""

    def pack(weight: torch.Tensor) -> Packed:
        tall, wide = height or weight.shape[0], width or weight.shape[1]
        scales = torch.empty(-(-weight.shape[0] // tall), -(-weight.shape[1] // wide))
        stored, found = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
        for row in range(scales.shape[0]):
            for column in range(scales.shape[1]):
                at = slice(row * tall, (row + 1) * tall), slice(column * wide, (column + 1) * wide)
                scales[row, column] = weight[at].abs().max() / 448
                stored[at] = (weight[at] / scales[row, column]).to(stored.dtype)
                found[at] = stored[at].float() * scales[row, column]
        scale = scales.reshape(()) if not height and not width else scales
        return Packed({".weight": stored, name: scale, ".k_scale": torch.ones(1)}, found)

    return pack


FOUR_BITS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def fp4(group: int, whole: float | None, of_nvidia: bool = False) -> Pack:
    """compressed-tensors: NVFP4 with a scale for the whole weight, else MXFP4. `of_nvidia`: as ModelOpt names them."""

    def pack(weight: torch.Tensor) -> Packed:
        grouped = weight.detach().float().reshape(len(weight), -1, group)
        scales = grouped.abs().amax(-1) / 6
        if whole is None:
            exponents = scales.log2().ceil().clamp(-127, 127)
            scales, stored = 2**exponents, (exponents + 127).to(torch.uint8)
        else:
            stored = (scales * whole).to(torch.float8_e4m3fn)
            scales = stored.float() / whole
        steps = torch.tensor(FOUR_BITS)
        numbers = ((grouped / scales[..., None]).abs()[..., None] - steps).abs().argmin(-1)
        found = steps[numbers] * grouped.sign() * scales[..., None]
        codes = (numbers + 8 * (grouped < 0)).reshape(len(weight), -1).to(torch.uint8)
        tensors = {".weight_packed": codes[:, ::2] | (codes[:, 1::2] << 4), ".weight_scale": stored}
        if of_nvidia and whole is not None:
            more = {".weight_scale_2": torch.tensor(1 / whole), ".input_scale": torch.tensor(2.0)}
            tensors = {".weight": tensors[".weight_packed"], ".weight_scale": stored, **more}
        elif whole is not None:
            tensors[".weight_global_scale"] = torch.tensor([whole])
        return Packed(tensors, found.reshape(weight.shape))

    return pack


def nf4(nested: bool) -> Pack:
    """bitsandbytes: numbers of a table in 4 bits, in blocks of 64. `nested`: the scales are numbers of a table too."""

    def pack(weight: torch.Tensor) -> Packed:
        table, block, numbers = torch.linspace(-1, 1, 16) ** 3, 64, weight.detach().float().reshape(-1, 64)
        scales = numbers.abs().amax(-1)
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "float16", "shape": list(weight.shape)}
        tensors: dict[str, torch.Tensor] = {".weight.quant_map": table}
        if nested:
            bytes_of, offset, several = torch.linspace(-1, 1, 256), float(scales.mean()), 4
            state.update(nested_blocksize=several, nested_dtype="float32", nested_offset=offset)
            grouped = (scales - offset).view(-1, several)
            largest = grouped.abs().amax(-1)
            codes = ((grouped / largest[:, None])[..., None] - bytes_of).abs().argmin(-1)
            scales = (bytes_of[codes] * largest[:, None]).flatten() + offset
            tensors[".weight.absmax"] = codes.flatten().to(torch.uint8)
            tensors |= {".weight.nested_absmax": largest, ".weight.nested_quant_map": bytes_of}
        else:
            tensors[".weight.absmax"] = scales
        codes = ((numbers / scales[:, None])[..., None] - table).abs().argmin(-1)
        pairs = codes.flatten().to(torch.uint8).view(-1, 2)
        tensors[".weight"] = ((pairs[:, 0] << 4) | pairs[:, 1])[:, None]
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors[".weight.quant_state.bitsandbytes__nf4"] = text
        return Packed(tensors, (table[codes] * scales[:, None]).view(weight.shape))

    return pack


def llm_int8(weight: torch.Tensor) -> Packed:
    """bitsandbytes: integers of 8 bits."""
    largest = weight.detach().abs().amax(-1).float()
    values = (weight.detach().float() / largest[:, None] * 127).round().to(torch.int8)
    tensors = {".weight": values, ".SCB": largest, ".weight_format": torch.tensor(0, dtype=torch.uint8)}
    scales = (largest / 127)[:, None]
    return Packed(tensors, values.float() * scales, values, scales)


def of_torchao(bits: int) -> Pack:
    """torchao: `IntxUnpackedToInt8Tensor` with groups of 32, or `Int8Tensor`."""

    def pack(weight: torch.Tensor) -> Packed:
        group = 32 if bits == 4 else 0
        values, scales, zeros = integers(weight, bits, group, True)
        kept = symmetric_parts(values, scales, bits)
        tensors = {"._weight_qdata": kept["values"], "._weight_scale": kept["scales"]}
        if bits == 4:
            tensors["._weight_zero_point"] = torch.zeros(scales.shape, dtype=torch.int8)
        index = np.arange(values.shape[1]) // (group or values.shape[1])
        return Packed(tensors, product(values, scales, zeros, index), **kept)

    return pack


def model(dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """A small model with weights that keep its scores far from zero."""
    import transformers

    made = transformers.AutoConfig.for_model(**{**CONFIG, "dtype": "float32", **config})
    found = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in found.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn(parameter.shape, generator=numbers) / parameter.shape[-1] ** 0.5
    return found.to(dtype)


def write(
    folder: Path, module: Any, pack: Pack, quantization: Mapping[str, Any], shards: bool = False
) -> dict[str, Packed]:
    """Writes a model as a hub delivers it, its linear layers packed. The module gets the weights that are in the file.

    Returns:
        The packed layers by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layers: dict[str, Packed] = {}
    for tensor in module.state_dict().values():
        tensor.copy_(tensor.half())
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layers[name] = pack(layer.weight)
            layer.weight.data = layers[name].weight
    plain = {n: x.half() for n, x in module.state_dict().items() if n.removesuffix(".weight") not in layers}
    stored = {f"{name}{end}": x.contiguous() for name, one in layers.items() for end, x in one.tensors.items()}
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": dict(quantization)}))
    files = [{**plain, **stored}]
    if shards:
        every = sorted(files[0].items())
        files = [dict(every[::2]), dict(every[1::2])]
        index = {name: f"model-{number}.safetensors" for number, each in enumerate(files) for name in each}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for number, each in enumerate(files):
        save_file(each, folder / (f"model-{number}.safetensors" if shards else "model.safetensors"))
    return layers
