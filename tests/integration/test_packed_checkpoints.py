"""Checkpoints whose weights are packed compute what the weights in them stand for, and keep their integers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
    IntxUnpackedToInt8TensorActivationQuantization as Activations,
)

from etbuild.errors import InputError
from etbuild.key.declared import Inputs
from etbuild.model.checkpoint import CheckpointTensors
from etbuild.model.module import named_tensors
from etbuild.model.weights_files import describe_state
from etbuild.plan.parts import WeightsFile
from etplugins.packed import checkpoints, compressed_tensors, formats
from etplugins.packed.checkpoints import packing_of
from etplugins.packed.integers import Integers
from etplugins.packed.kept import KeptIntegers
from etplugins.quantize.parts import TorchaoEntry
from etplugins.quantize.torchao_weights import kept_weights
from tests.helpers import packed
from tests.helpers.runtime import run
from tests.integration.conftest import Build, Outcome

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

TIED = ["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"]
IDS = torch.arange(3, 11)[None]
KEEP = {"torchao": [{"config": "packed"}]}
NEAR = 0.02
"""The largest difference, as a part of the range: XNNPACK rounds scales of groups to 16 bits, and activations in
another order."""


def manifest(quantize: Any = None, **model: Any) -> str:
    inputs = [{"shape": [1, 8], "dtype": "int64", "fill": "zeros"}]
    huggingface = {"class": "AutoModelForCausalLM", "config": "net/config.json"}
    return json.dumps(
        {
            "schema": "executorch-model/v1",
            "name": "net",
            "model": {"huggingface": huggingface, "weights": "net", "dtype": "float32", **model},
            "defaults": {"partitioners": ["xnnpack"], **({} if quantize is None else {"quantize": quantize})},
            "methods": {"forward": {"example_inputs": inputs}},
        }
    )


def built_from(build: Build, folder: Path, quantize: Any = None) -> Outcome:
    files = {f"net/{path.name}": path.read_bytes() for path in folder.iterdir()}
    return build(manifest(quantize), files=files)


def difference(built: Outcome, expected: Any, place: Path) -> float:
    """The largest difference of scores, as a part of their range."""
    [[[actual]]] = run(built.directory / "net.pte", [[("forward", [IDS])]], place)
    with torch.no_grad():
        scores = expected(input_ids=IDS).logits
    return float((actual - scores).abs().max() / (scores.max() - scores.min()))


def with_integers(module: Any, layers: dict[str, packed.Packed], bits: int) -> Any:
    """The module with the integers of the checkpoint as torchao's tensors."""
    for name, one in layers.items():
        layer = module.get_submodule(name)
        assert one.values is not None
        assert one.scales is not None
        weight = IntxUnpackedToInt8Tensor(
            one.values,
            one.scales,
            torch.zeros(one.scales.shape, dtype=torch.int8),
            torch.int4 if bits <= 4 else torch.int8,
            (1, one.values.shape[1] // one.scales.shape[1]),
            torch.float32,
            Activations.INT8_ASYM_PER_TOKEN,
        )
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


GROUPED = (".scales", ".qzeros", ".weight_scale")


def of_compressed(form: str, weights: Any = None, **config: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights or {}}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, **config}


def of_words(bits: int, group: int = 32, **config: Any) -> dict[str, Any]:
    """The configuration of integers in words, as compressed-tensors writes it."""
    return of_compressed("pack-quantized", {"num_bits": bits, "type": "int", "group_size": group or None}, **config)


FORMATS: dict[str, tuple[packed.Pack, dict[str, Any], str | None]] = {
    # How weights are packed, `quantization_config`, and why the integers are not kept
    "gptq": (packed.gptq(), GPTQ, None),
    "gptq-asymmetric": (packed.gptq(symmetric=False), {**GPTQ, "sym": False}, "asymmetric"),
    "gptq-in-another-order": (packed.gptq(order=True), {**GPTQ, "desc_act": True}, "neighbours"),
    "gptq-v2-3-bits": (packed.gptq(bits=3, version=2), {**GPTQ, "bits": 3, "checkpoint_format": "gptq_v2"}, None),
    "gptq-8-bits": (packed.gptq(bits=8, symmetric=False), {**GPTQ, "bits": 8}, "asymmetric"),
    "gptq-8-bits-groups": (packed.gptq(bits=8), {**GPTQ, "bits": 8}, "its values have 8 bits and groups of 32"),
    "gptq-8-bits-rows": (packed.gptq(bits=8, group=0), {**GPTQ, "bits": 8, "group_size": -1}, None),
    "gptq-small-groups": (packed.gptq(group=16), {**GPTQ, "group_size": 16}, "its groups have 16 weights"),
    "awq": (packed.awq(), AWQ, "asymmetric"),
    "compressed-4-bits": (packed.compressed(), of_words(4), None),
    "compressed-asymmetric": (packed.compressed(symmetric=False), of_words(4), "asymmetric"),
    "compressed-8-bits-rows": (packed.compressed(8, 0), of_words(8, 0), None),
    "compressed-3-bits": (packed.compressed(3, 64), of_words(3, 64), None),
    "compressed-3-bits-gaps": (packed.compressed(3, 64, gaps=True), of_words(3, 64), None),
    "compressed-6-bits-gaps-asymmetric": (
        packed.compressed(6, 64, symmetric=False, gaps=True),
        of_words(6, 64, version="0.17.1"),
        "asymmetric",
    ),
    "compressed-5-bits-asymmetric": (packed.compressed(5, 0, symmetric=False), of_words(5, 0), "asymmetric"),
    "compressed-int8": (packed.eight_bits, of_compressed("int-quantized"), None),
    "compressed-fp8-rows": (packed.fp8(1, 0, ".weight_scale"), of_compressed("float-quantized"), ""),
    "compressed-fp8": (packed.fp8(0, 0, ".weight_scale"), of_compressed("float-quantized"), ""),
    "compressed-fp8-blocks": (
        packed.fp8(48, 128, ".weight_scale"),
        of_compressed("float-quantized", {"block_structure": [48, 128]}),
        "",
    ),
    "compressed-nvfp4": (packed.fp4(16, 300.0), of_compressed("nvfp4-pack-quantized"), ""),
    "compressed-mxfp4": (packed.fp4(32, None), of_compressed("mxfp4-pack-quantized"), ""),
    "fp8-blocks": (packed.fp8(128, 48), {"quant_method": "fp8", "weight_block_size": [128, 48]}, ""),
    "fp8": (packed.fp8(0, 0), {"quant_method": "fp8", "weight_block_size": None}, ""),
    "fbgemm-fp8": (packed.fp8(1, 0, ".weight_scale"), {"quant_method": "fbgemm_fp8"}, ""),
    "modelopt-nvfp4": (packed.fp4(16, 300.0, of_nvidia=True), {"quant_method": "modelopt"}, ""),
    "modelopt-fp8": (packed.fp8(0, 0, ".weight_scale"), {"quant_method": "modelopt"}, ""),
    "bitsandbytes-nf4": (packed.nf4(nested=False), {"load_in_4bit": True}, ""),
    "bitsandbytes-nf4-nested": (packed.nf4(nested=True), {"quant_method": "bitsandbytes"}, ""),
    "bitsandbytes-int8": (packed.llm_int8, {"quant_method": "bitsandbytes"}, None),
    "torchao-4-bits": (packed.of_torchao(4), {"quant_method": "torchao"}, None),
    "torchao-8-bits": (packed.of_torchao(8), {"quant_method": "torchao"}, None),
    "awq-symmetric": (packed.awq(group=64, symmetric=True), {**AWQ, "group_size": 64}, None),
}


def read(
    folder: Path, wanted: bool, floats: bool = False, tied: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[Any, KeptIntegers]:
    """A model with the weights of a folder, and what one method keeps of them as integers if that is wanted. `floats`:
    another one reads them as floats. `tied`: two layers have one weight."""
    config = transformers.AutoConfig.from_pretrained(folder)
    module = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if tied:
        one, other = (module.get_submodule(name) for name in TIED)
        other.weight = one.weight
    weights = (WeightsFile.from_json(folder.name),)
    checkpoint = CheckpointTensors(
        weights, Inputs(roots=[folder.parent]), describe_state(module), True, module, packing_of(module)
    )
    entry = TorchaoEntry.from_json({"config": "packed", "modules": ["*"], "layers": ["linear"], "group_size": None})
    kept = KeptIntegers(*kept_weights(module, [*([[entry]] if wanted else []), *([[]] if floats else [])]))
    checkpoint.load_into(named_tensors(module), kept)
    return module, kept


@pytest.mark.parametrize("name", FORMATS)
def test_the_weights_are_those_that_the_library_computes_with(name: str, tmp_path: Path) -> None:
    pack, quantization, why_not = FORMATS[name]
    expected = packed.model()
    layers = packed.write(tmp_path / "net", expected, pack, quantization, shards=True)
    actual, _ = read(tmp_path / "net", wanted=False)
    with torch.no_grad():
        scores, found = expected(input_ids=IDS).logits, actual(input_ids=IDS).logits
    assert float((found - scores).abs().max()) <= 1e-5 * float(scores.max() - scores.min())
    module, kept = read(tmp_path / "net", wanted=True)
    if why_not is not None:
        assert not kept.integers
        assert not why_not or why_not in kept.dequantized["model.layers.0.mlp.up_proj.weight"]
        return
    assert {f"{name}.weight" for name in layers} == kept.integers.keys()
    for name, layer in layers.items():
        integers = kept.integers[f"{name}.weight"]
        assert layer.values is not None
        assert layer.scales is not None
        assert torch.equal(integers.values, layer.values)
        assert torch.equal(integers.scales, layer.scales)
        assert not module.get_parameter(f"{name}.weight").any()  # nothing needs the floats
    module, kept = read(tmp_path / "net", wanted=True, floats=True)
    assert all(torch.equal(each.dequantized(), module.get_parameter(name)) for name, each in kept.integers.items())


@pytest.mark.parametrize("name", ["gptq", "awq", "fp8"])
@pytest.mark.parametrize(("wanted", "floats"), [(False, False), (True, False), (True, True)])
def test_packed_copies_of_a_tied_weight_must_agree(name: str, wanted: bool, floats: bool, tmp_path: Path) -> None:
    pack, quantization, _ = FORMATS[name]
    module = packed.model()
    packed.write(tmp_path / "net", module, pack, quantization)
    with pytest.raises(InputError, match="are one tied parameter of the module, but they differ in `net/model"):
        read(tmp_path / "net", wanted, floats, tied=True)
    one, other = (module.get_submodule(name) for name in TIED)
    other.weight.data = one.weight.data.clone()
    layers = packed.write(tmp_path / "net", module, pack, quantization)
    found, kept = read(tmp_path / "net", wanted, floats, tied=True)
    if kept.integers:
        values = layers[TIED[0]].values
        assert values is not None
        assert all(torch.equal(kept.integers[f"{name}.weight"].values, values) for name in TIED)
    else:
        assert torch.equal(found.get_submodule(TIED[0]).weight, layers[TIED[0]].weight)


def test_small_differences_of_the_scales_of_packed_copies_are_found(tmp_path: Path) -> None:
    """The model's dtype has too few bits for them, and the program keeps the scales."""
    config = {**FORMATS["gptq"][1]}
    module = packed.model()
    one, other = (module.get_submodule(name) for name in TIED)
    other.weight.data = one.weight.data.clone()
    layers = packed.write(tmp_path / "net", module, packed.gptq(), config)
    file = tmp_path / "net/model.safetensors"
    stored = load_file(file)
    stored[f"{TIED[1]}.scales"] = layers[TIED[1]].tensors[".scales"] * 1.001
    save_file(stored, file)
    with pytest.raises(InputError, match="but they differ"):
        read(tmp_path / "net", wanted=True, tied=True, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({**GPTQ, "checkpoint_format": "marlin"}, "is packed by gptq with `checkpoint_format: marlin` with `bits: 4`"),
        ({**GPTQ, "bits": None}, "with `bits: None`"),
        ({**AWQ, "version": "gemv"}, "is packed by awq with `version: gemv`"),
        (of_compressed("marlin-24"), "is packed by compressed-tensors with `format: marlin-24`"),
        ({"quant_method": "hqq"}, "its `quantization_config` says `hqq`"),
        ({**GPTQ, "bits": 8}, "`model.layers.0.mlp.down_proj.weight` is float32[128, 256] in the module and"),
    ],
)
def test_another_format_is_an_error(quantization: dict[str, Any], message: str, tmp_path: Path) -> None:
    packed.write(tmp_path / "net", packed.model(), packed.gptq(), quantization)
    with pytest.raises(InputError) as error:
        read(tmp_path / "net", wanted=False)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (of_words(4, 64), "26 words do not fit: `quantization_config` says 4 bits for 256 numbers"),
        (of_compressed("pack-quantized"), "do not fit: `quantization_config` says no `num_bits`"),
        (of_words(3, 32), "4 groups of 256 columns are not groups of 32"),
    ],
)
def test_words_and_groups_are_those_of_the_configuration(
    quantization: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pack = packed.compressed(3, 64, gaps=True) if "groups of" not in message else packed.compressed(3, 64)
    packed.write(tmp_path / "net", packed.model(), pack, quantization)
    with pytest.raises(InputError) as error:
        read(tmp_path / "net", wanted=False)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("bits", "count", "words", "version", "gaps"),
    [
        ({3}, 20, 2, "0.17.1", True),
        ({3}, 20, 2, "0.18.0.a20260101", False),
        ({3}, 20, 2, None, None),
        ({3}, 10, 1, None, False),
        ({7, 8}, 64, 16, "0.9.4", None),
        ({7, 8}, 64, 16, "0.19.0", False),
        ({3, 4}, 64, 7, None, True),
    ],
)
def test_the_release_decides_where_counts_of_words_do_not(
    bits: set[int], count: int, words: int, version: str | None, gaps: bool | None
) -> None:
    config = of_compressed("pack-quantized", version=version)
    config["config_groups"] = {str(each): {"weights": {"num_bits": each}} for each in bits}
    found = compressed_tensors.words(config)
    if gaps is None:
        with pytest.raises(ValueError, match="fit more than one form"):
            found.of(words, count)
    else:
        assert found.of(words, count)[1] == gaps


def test_a_damaged_layer_is_named(tmp_path: Path) -> None:
    def damaged(weight: torch.Tensor) -> packed.Packed:
        found = packed.gptq()(weight)
        return packed.Packed({**found.tensors, ".scales": found.tensors[".scales"][:-1]}, found.weight)

    packed.write(tmp_path / "net", packed.model(), damaged, GPTQ)
    with pytest.raises(InputError, match=r"cannot unpack `model.layers.0.mlp.down_proj.weight`"):
        read(tmp_path / "net", wanted=False)


@pytest.mark.parametrize("name", ["gptq", "awq", "compressed-4-bits"])
def test_a_layer_with_fewer_columns_than_a_group_is_named(name: str, tmp_path: Path) -> None:
    """Its library wrote the scales of no group."""
    pack, quantization, _ = FORMATS[name]
    along_rows = name == "compressed-4-bits"

    def without_groups(weight: torch.Tensor) -> packed.Packed:
        found = pack(weight)
        none = {end: each.narrow(int(along_rows), 0, 0) for end, each in found.tensors.items() if end in GROUPED}
        return packed.Packed({**found.tensors, **none}, found.weight)

    size = {"group_size": 512}
    quantization = of_compressed("pack-quantized", size) if along_rows else {**quantization, **size}
    packed.write(tmp_path / "net", packed.model(), without_groups, quantization)
    with pytest.raises(InputError) as error:
        read(tmp_path / "net", wanted=False)
    assert "cannot unpack `model.layers.0.mlp.down_proj.weight`" in str(error.value)
    assert "is empty: the layer has 256 columns, and a group has 512" in str(error.value)


def test_scales_become_positive_where_the_values_can_turn() -> None:
    values = torch.tensor([[-7, 7, 1, 1], [-8, 3, 5, 5]], dtype=torch.int8)
    found = Integers(values, torch.tensor([[-0.5, 0.0], [0.25, 1.0]]), None, 4)
    turned = found.positive()
    assert turned.scales.tolist() == [[0.5, 1.0], [0.25, 1.0]]
    assert torch.equal(turned.dequantized(), found.dequantized())
    lowest = Integers(values, torch.tensor([[1.0, 1.0], [-0.25, 1.0]]), None, 4)
    assert lowest.misfit("linear") == "a scale is negative, and XNNPACK takes none"
    assert lowest.misfit("embedding") is None


def test_the_experts_of_gpt_oss_are_dequantized(tmp_path: Path) -> None:
    """Their blocks and scales are tensors of all experts of a layer."""
    config = transformers.AutoConfig.for_model(
        "gpt_oss",
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=96,
    )
    expected = transformers.AutoModelForCausalLM.from_config(config).eval()
    stored = {}
    for name, tensor in expected.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = tensor
            continue
        one = [packed.fp4(32, None)(expert.T) for expert in tensor]
        tensor.copy_(torch.stack([each.weight.T for each in one]))
        blocks = torch.stack([each.tensors[".weight_packed"] for each in one])
        stored[f"{name}_blocks"] = blocks.unflatten(-1, (-1, 16))
        stored[f"{name}_scales"] = torch.stack([each.tensors[".weight_scale"] for each in one])
    (tmp_path / "net").mkdir()
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, tmp_path / "net/model.safetensors")
    config.quantization_config = {"quant_method": "mxfp4"}
    (tmp_path / "net/config.json").write_text(config.to_json_string())
    actual, _ = read(tmp_path / "net", wanted=False)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(actual.state_dict()[name], tensor), name


def test_a_packed_checkpoint_is_dequantized(build: Build, tmp_path: Path) -> None:
    module = packed.model()
    packed.write(tmp_path / "net", module, *FORMATS["gptq"][:2])
    built = built_from(build, tmp_path / "net")
    assert built.code == 0, built.err
    assert "note: packed weights (gptq) are dequantized: `quantize" in built.err
    assert difference(built, module, tmp_path) < 1e-3


def test_a_program_keeps_the_integers_of_its_checkpoint(build: Build, tmp_path: Path) -> None:
    module = packed.model()
    layers = packed.write(tmp_path / "net", module, *FORMATS["gptq"][:2])
    built = built_from(build, tmp_path / "net", KEEP)
    assert built.code == 0, built.err
    assert f"note: {len(layers)} packed weights keep their integers, and 0 are dequantized" in built.err
    assert difference(built, with_integers(module, layers, 4), tmp_path) < NEAR
    size = (built.directory / "net.pte").stat().st_size
    floats = sum(each.numel() * 4 for name, each in module.named_parameters() if "layers" not in name)
    linear = sum(each.values.numel() / 2 for each in layers.values() if each.values is not None)
    assert size < floats + 1.4 * linear + (1 << 15)


def test_the_formats_that_init_takes_are_those_that_the_build_reads() -> None:
    assert sorted(checkpoints._LAYOUTS) == sorted(formats.READ)
