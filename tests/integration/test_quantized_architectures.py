"""Quantized models of transformers that differ from Llama and ViT compute what the quantized module computes in eager
PyTorch."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)

from etplugins.quantize import plain_linear
from tests.helpers.runtime import run
from tests.integration.conftest import Build

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
DECODERS: dict[str, dict[str, Any]] = {
    # Norms behind the layers, and of queries and keys
    "olmo2": {**SHAPE, "num_key_value_heads": 2},
    # Factors of embeddings, attention, residuals and scores
    "granite": {
        **SHAPE,
        "num_key_value_heads": 2,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
    },
    # Attention and feed-forward layers side by side, one layer for queries, keys and values, rotations of a part
    "gpt_neox": {**SHAPE, "rotary_pct": 0.5},
}
IMAGES: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    # Depthwise convolutions, and norms over all places
    "convnextv2": (
        "ConvNextV2ForImageClassification",
        {"hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2, "image_size": 32, "num_labels": 5},
        [1, 3, 32, 32],
    ),
    # Factors of each channel, and positions that are interpolated
    "dinov2": (
        "Dinov2ForImageClassification",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 42,
            "patch_size": 14,
            "layerscale_value": 0.5,
            "num_labels": 5,
        },
        [1, 3, 28, 28],
    ),
}
LINEAR = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
NEAR = 0.06
"""The largest mean difference, as a part of the mean output: XNNPACK rounds activations in another order."""

NEAR_8 = 0.12
"""The same for static scales: where XNNPACK rounds to the next step of 8 bits, later layers get another input."""


def filled(model: Any) -> Any:
    """The model with weights that keep outputs far from zero."""
    numbers = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn(parameter.shape, generator=numbers) / parameter[0].numel() ** 0.5
    return model.eval()


def stored(model: Any) -> bytes:
    content: bytes = save({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return content


def manifest(huggingface: dict[str, Any], **keys: Any) -> str:
    model = {"huggingface": huggingface, "weights": "model.safetensors"}
    return json.dumps({"schema": "executorch-model/v1", "name": "net", "model": model, **keys})


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).abs().mean() / expected.abs().mean())


@pytest.mark.long
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_in_4_bits(name: str, build: Build, tmp_path: Path) -> None:
    config = {"model_type": name, **DECODERS[name]}
    made = transformers.AutoConfig.for_model(**config)
    model = filled(transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager"))
    cache = {"max_length": 64, "max_seq_length": 24, "kind": "custom"}
    quantize = {"torchao": [{"config": "8da4w", "group_size": 32}, {"config": "int8", "layers": ["embedding"]}]}
    built = build(
        manifest(
            {"task": "text-generation", "config": config, "cache": cache},
            runner="executorch-llm/v1",
            defaults={"partitioners": ["xnnpack"], "quantize": quantize},
        ),
        files={"model.safetensors": stored(model)},
    )
    assert built.code == 0, built.err
    ids = (torch.arange(30) * 7 % 61 + 3)[None]
    with torch.no_grad():
        plain = model(input_ids=ids).logits[0]
        quantize_(model, LINEAR)
        embedding = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
        quantize_(model, embedding, lambda layer, _: isinstance(layer, torch.nn.Embedding))
        expected = model(input_ids=ids).logits[0]
    cuts = [0, 10, 25, *range(26, 31)]
    calls = [("forward", [ids[:, start:end], torch.tensor([start])]) for start, end in itertools.pairwise(cuts)]
    [outputs] = run(built.directory / "net.pte", [calls], tmp_path)
    actual, asked = torch.cat([scores for (scores,) in outputs]), [end - 1 for end in cuts[1:]]
    assert difference(actual, expected[asked]) < NEAR
    assert difference(plain[asked], expected[asked]) > 2 * NEAR


class Scores(torch.nn.Module):
    """A model that returns its scores only."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> Any:
        return self.model(image).logits


def in_eight_bits(model: Any, image: torch.Tensor) -> torch.Tensor:
    """The result of a model in eager PyTorch that PT2E has quantized with XNNPACK's quantizer."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    exported = torch.export.export(Scores(model), (image,)).module()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(exported, quantizer)
    prepared(image)
    found: torch.Tensor = convert_pt2e(prepared)(image)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", IMAGES)
def test_an_image_model_in_8_and_in_4_bits(name: str, build: Build, tmp_path: Path) -> None:
    kind, config, shape = IMAGES[name]
    cls = getattr(transformers, kind)
    model = filled(cls._from_config(cls.config_class(**config)))
    image = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    save_file({"image": image}, tmp_path / "image.safetensors")
    inputs = {"entry": "forward", "example_inputs": [{"file": "image.safetensors", "key": "image"}]}
    calibrated = {"pt2e": {"quantizers": ["xnnpack"], "calibration": "example_inputs"}}
    linear = {"torchao": [{"config": "8da4w", "group_size": 32, "fitting": True}]}
    methods = {"in_8": {**inputs, "quantize": calibrated}, "in_4": {**inputs, "quantize": linear}}
    built = build(
        manifest({"class": kind, "config": config}, defaults={"partitioners": ["xnnpack"]}, methods=methods),
        files={"model.safetensors": stored(model), "image.safetensors": (tmp_path / "image.safetensors").read_bytes()},
    )
    assert built.code == 0, built.err
    [[(in_8,), (in_4,)]] = run(built.directory / "net.pte", [[("in_8", [image]), ("in_4", [image])]], tmp_path)
    with torch.no_grad():
        plain = model(image).logits
        expected_8 = in_eight_bits(model, image)
        quantize_(model, LINEAR, lambda layer, _: isinstance(layer, torch.nn.Linear) and layer.in_features % 32 == 0)
        expected_4 = model(image).logits
    assert difference(in_8, expected_8) < NEAR_8
    assert difference(in_4, expected_4) < NEAR
    assert difference(plain, expected_8) > 1e-3
    assert difference(plain, expected_4) > NEAR


OWN_LINEAR = """
import torch

class Own(torch.nn.Linear):
    def forward(self, x):
        return x @ self.weight.T + self.bias

class Turned(torch.nn.Module):  # as GPT-2's `Conv1D`
    def __init__(self, *sizes):
        super().__init__()
        linear = torch.nn.Linear(*sizes)
        self.weight, self.bias = torch.nn.Parameter(linear.weight.detach().T.contiguous()), linear.bias

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)

class Named(torch.nn.Module):  # a linear layer that is not derived from PyTorch's
    def __init__(self, *sizes):
        super().__init__()
        self.weight, self.bias = torch.nn.Linear(*sizes).parameters()

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)

class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)

def create(own):
    torch.manual_seed(0)
    kinds = (Own, Turned, Named) if own else [torch.nn.Linear] * 3
    sizes = ((32, 64), (64, 32), (32, 32))
    return torch.nn.Sequential(*(kind(*each) for kind, each in zip(kinds, sizes)), Doubled(32, 8))
"""


class Factor(torch.nn.Linear):
    """A layer that has an attribute of its own, which a new layer of its class has too."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x @ self.weight.T * self.factor
        return result


class Adapted(torch.nn.Linear):
    """A layer with a weight that is zero until it is trained."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.more = torch.nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x @ (self.weight + self.more).T + self.bias
        return result


def test_a_layer_that_only_looks_like_a_linear_one_keeps_its_code() -> None:
    plain, doubled, adapted = Factor(32, 8, bias=False), Factor(32, 8, bias=False), Adapted(32, 8)
    doubled.factor = 2.0
    module = torch.nn.ModuleList([plain, doubled, adapted])
    quantize_(module, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8))
    plain_linear.choose(module)
    kept = [type(layer).forward is not torch.nn.Linear.forward for layer in (plain, doubled, adapted)]
    assert kept == [False, True, True]


def test_a_layer_that_only_looks_like_a_turned_linear_one_keeps_its_code() -> None:
    class Router(torch.nn.Module):
        def __init__(self, forward: Any) -> None:
            super().__init__()
            self.weight, self.given = torch.nn.Parameter(torch.randn(8, 8)), forward

        def forward(self, x: torch.Tensor) -> Any:
            return self.given(x, self.weight)

    kinds = {
        None: (
            lambda x, w: (x @ w.T, x),
            lambda x, w: (x @ w).softmax(-1),
            lambda x, w: x @ w if x.dim() < 3 else x,
            lambda x, w: x.float() @ w.float(),
        ),
        True: (lambda x, w: x @ w,),
        False: (torch.nn.functional.linear, lambda x, w: (w @ x.T).T),
    }
    for expected, forwards in kinds.items():
        for forward in forwards:
            assert plain_linear.is_turned(Router(forward)) is expected
    assert plain_linear.is_turned(torch.nn.Embedding(8, 8)) is None


def test_a_linear_layer_with_code_of_its_own_is_quantized(build: Build, tmp_path: Path) -> None:
    """Falcon multiplies with its weight itself, which torchao's weights do not take part in; GPT-2's weights are of
    another class, and turned."""
    scope: dict[str, Any] = {}
    exec(OWN_LINEAR, scope)
    weights = {name: tensor.clone() for name, tensor in scope["create"](own=True).state_dict().items()}
    results = []
    for own, files in ((False, {}), (True, {}), (True, {"net.safetensors": save(weights)})):
        data = json.loads(manifest({}, methods={"forward": {"example_inputs": [{"shape": [4, 32]}]}}))
        data["model"] = {"factory": "model:create", "kwargs": {"own": own}}
        data["model"] |= {"weights": "net.safetensors"} if files else {}
        data["defaults"] = {"partitioners": ["xnnpack"], "quantize": {"torchao": [{"config": "8da4w"}]}}
        built = build(json.dumps(data), model=OWN_LINEAR, files=files)
        assert built.code == 0, built.err
        assert built.json("net.report.json")["quantization"]["quantized"] == 4
        inputs = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
        [[outputs]] = run(built.directory / "net.pte", [[("forward", [inputs])]], tmp_path)
        results.append(outputs[0])
    for each in results[1:]:
        torch.testing.assert_close(each, results[0])
