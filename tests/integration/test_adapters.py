"""Methods with LoRA adapters compute what PEFT computes, and the program does not depend on the adapters' weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from etplugins.lora import config as adapter_config
from tests.helpers import commands
from tests.helpers.runtime import run
from tests.integration.conftest import Build, Outcome

Tensors = dict[str, torch.Tensor]

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = torch.nn.ModuleDict({"query": torch.nn.Linear(8, 16), "value": torch.nn.Linear(8, 16)})
        self.head = torch.nn.Linear(16, 4)
        self.table = torch.nn.Embedding(4, 8)
        self.other = torch.nn.Linear(8, 16)

    def forward(self, x):
        return self.head(self.block["query"](x) * self.block["value"](input=x).sigmoid())

    def read(self, x):
        return torch.nn.functional.linear(x, self.block["query"].weight) + self.head(self.block["value"](x))[..., :1]

def create():
    return Net()
"""
TARGETS = {"block.query": (8, 16), "block.value": (8, 16), "head": (16, 4), "other": (8, 16)}
INPUT = torch.linspace(-2, 2, 16).reshape(2, 8)
PEFT = {"peft_type": "LORA", "bias": "none", "init_lora_weights": True, "loftq_config": {}, "modules_to_save": None}


def weights(layers: list[str], rank: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensors:
    """The weights of an adapter as PEFT names them."""
    numbers, found = torch.Generator().manual_seed(seed), {}
    for layer in layers:
        inputs, outputs = TARGETS[layer]
        for factor, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
            found[f"base_model.model.{layer}.{factor}.weight"] = torch.randn(shape, generator=numbers).to(dtype)
    return found


def files(name: str, config: dict[str, Any], tensors: Tensors) -> dict[str, bytes]:
    content = {
        "adapter_config.json": json.dumps({**PEFT, **config}).encode(),
        "adapter_model.safetensors": save(tensors),
    }
    return {f"{name}/{file}": data for file, data in content.items()}


def manifest(adapters: dict[str, Any], **keys: Any) -> str:
    """A manifest with the method `forward`, and one more for each adapter."""
    inputs = {"example_inputs": [{"shape": [2, 8]}]}
    data = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"factory": "model:create", "adapters": adapters},
        "defaults": {"partitioners": ["xnnpack"]},
        "methods": {
            "forward": inputs,
            **{f"forward_{name}": {"entry": "forward", "adapter": name, **inputs} for name in adapters},
        },
    }
    return json.dumps({**data, **keys})


@contextmanager
def adapted(module: torch.nn.Module, tensors: Tensors, factor: Callable[[str], float]) -> Iterator[None]:
    """Within this context, layers return W x + b + factor * B (A x)."""
    hooks = []
    for name, layer in module.named_modules():
        found = [tensors.get(f"base_model.model.{name}.{each}.weight") for each in ("lora_A", "lora_B")]
        if found[0] is not None:
            first, second = (each.float() for each in found if each is not None)

            def change(
                layer: Any,
                inputs: Any,
                named: Any,
                outputs: Any,
                product: Any = second @ first,
                scale: float = factor(name),
            ) -> Any:
                x = [*inputs, *named.values()][0]
                return (outputs + scale * (x.float() @ product.T)).to(outputs.dtype)

            hooks.append(layer.register_forward_hook(change, with_kwargs=True))
    yield
    for hook in hooks:
        hook.remove()


def net() -> Any:
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    exec(MODEL, namespace)
    return namespace["create"]().eval()


def expected(tensors: Tensors, factor: Callable[[str], float], module: Any = None, x: torch.Tensor = INPUT) -> Any:
    module = net() if module is None else module
    with torch.no_grad(), adapted(module, tensors, factor):
        return module(x)


def outputs(built: Outcome, scratch: Path, *methods: str, x: torch.Tensor = INPUT) -> list[torch.Tensor]:
    assert built.code == 0, built.err
    [results] = run(built.directory / "net.pte", [[(method, [x]) for method in methods]], scratch)
    return [result for (result,) in results]


@pytest.mark.parametrize("partitioners", [["xnnpack"], []])
def test_methods_compute_with_their_adapter_and_others_without(
    partitioners: list[str], build: Build, tmp_path: Path
) -> None:
    math_weights = weights(["block.query", "block.value"], 2, 1)
    code_weights = weights(["block.value", "head"], 3, 2, torch.bfloat16)
    code_weights.update({name: x[:1] for name, x in code_weights.items() if "head.lora_A" in name})
    code_weights.update({name: x[:, :1].clone() for name, x in code_weights.items() if "head.lora_B" in name})
    code = {"target_modules": r"block\.v.*|head", "r": 3, "rank_pattern": {"head": 1}, "alpha_pattern": {"bl.*": 5}}
    given = {
        **files("math", {"target_modules": ["query", "block.value"], "r": 2, "lora_alpha": 6}, math_weights),
        **files("code", {**code, "lora_alpha": 4, "use_rslora": True}, code_weights),
    }
    own = {"config": "code/adapter_config.json", "weights": "code/adapter_model.safetensors"}
    named = {"math": "math", "code": own}
    keys = {"named_data": {"foundation": {"parameters": ["*"]}}, "defaults": {"partitioners": partitioners}}
    built = build(manifest(named, **keys), files=given, model=MODEL)
    actual = outputs(built, tmp_path, "forward", "forward_math", "forward_code", "forward")
    wanted = [
        expected({}, lambda _: 0),
        expected(math_weights, lambda _: 3),
        expected(code_weights, lambda layer: 4 if layer == "head" else 5 / math.sqrt(3)),
        expected({}, lambda _: 0),
    ]
    for one, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert (wanted[0] - wanted[1]).abs().max() > 0.1
    assert (wanted[0] - wanted[2]).abs().max() > 0.1
    assert [name for name in built.files if name.endswith(".ptd")] == [
        "net.code.ptd",
        "net.foundation.ptd",
        "net.math.ptd",
    ]


def test_a_module_that_is_exported_with_its_weights_has_adapters(build: Build, tmp_path: Path) -> None:
    """Its own code loads the weights, so that lowering and the comparison export it again."""
    loading = "    def _load_from_state_dict(self, *arguments):\n        super()._load_from_state_dict(*arguments)\n\n"
    model = MODEL.replace("    def forward(self", f"{loading}    def forward(self")
    of_adapter = weights(["block.query"], 2, 1)
    data = {**files("math", {"target_modules": ["query"], "r": 2, "lora_alpha": 6}, of_adapter)}
    module = {"factory": "model:create", "adapters": {"math": "math"}, "weights": "net.safetensors"}
    built = build(
        manifest({"math": "math"}, model=module),
        files={**data, "net.safetensors": save(dict(net().state_dict()))},
        model=model,
    )
    (actual,) = outputs(built, tmp_path, "forward_math")
    torch.testing.assert_close(actual, expected(of_adapter, lambda _: 3), rtol=1e-4, atol=1e-4)


def test_new_weights_lower_nothing_and_change_only_the_file_of_their_adapter(build: Build, tmp_path: Path) -> None:
    config = {"target_modules": ["query"], "r": 2, "lora_alpha": 2}
    first, second = weights(["block.query"], 2, 1), weights(["block.query"], 2, 2)
    made = []
    for math_weights in (first, second):
        given = {
            **files("math", config, math_weights),
            **files("code", config, first),
        }  # the first time, both are equal
        cache = ("--cache-dir", str(tmp_path / "cache"), "--json")
        keys = {"checks": {"max_named_data_bytes": {"math": 1000}}}
        built = build(manifest({"math": "math", "code": "code"}, **keys), *cache, files=given, model=MODEL)
        [forward, in_math, in_code] = outputs(built, tmp_path, "forward", "forward_math", "forward_code")
        torch.testing.assert_close(in_math, expected(math_weights, lambda _: 1))
        torch.testing.assert_close(in_code, expected(first, lambda _: 1))
        torch.testing.assert_close(forward, expected({}, lambda _: 1))
        made.append(built)
    done = json.loads(made[1].out)
    assert done["steps"] == {"export": "cached", "lower": "run", "compare": "run", "report": "run"}
    assert set(done["methods"].values()) == {"cached"}
    same = [made[0].read(name) == made[1].read(name) for name in ("net.pte", "net.code.ptd", "net.math.ptd")]
    assert same == [True, True, False]
    together = build(manifest({"math": "math", "code": "code"}), "--jobs", "1", files=given, model=MODEL)
    assert [together.read(name) for name in ("net.pte", "net.math.ptd")] == [
        made[1].read(name) for name in ("net.pte", "net.math.ptd")
    ]


def test_an_adapter_of_a_module_in_bfloat16_computes_in_float32(build: Build, tmp_path: Path) -> None:
    """The layer is that of GPT-2, whose weight is transposed."""
    source = MODEL.replace('"query": torch.nn.Linear(8, 16)', '"query": Conv1D(16, 8)')
    source = "from transformers.pytorch_utils import Conv1D\n" + source
    tensors = weights(["block.query"], 2, 1)
    data = json.loads(manifest({"math": "math"}, defaults={}))
    data["model"]["dtype"] = "bfloat16"
    for method in data["methods"].values():
        method["example_inputs"][0]["dtype"] = "bfloat16"
    given = files("math", {"target_modules": ["query"], "r": 2, "lora_alpha": 1, "fan_in_fan_out": True}, tensors)
    built = build(json.dumps(data), files=given, model=source)
    namespace: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(source, namespace)
    module, x = namespace["create"]().eval().to(torch.bfloat16), INPUT.to(torch.bfloat16)
    [actual] = outputs(built, tmp_path, "forward_math", x=x)
    wanted = expected(tensors, lambda _: 0.5, module, x)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, wanted, rtol=0.02, atol=0.02)
    assert (wanted - expected({}, lambda _: 0, module, x)).abs().max() > 0.2


QUERY = {"target_modules": ["query"], "r": 2}


@pytest.mark.parametrize(
    ("config", "keys", "message"),
    [
        ({"target_modules": ["key", "quer"]}, {}, "no layer of the module is one of the `target_modules` of"),
        ({"target_modules": ["table"]}, {}, "names `table`, which is of the class Embedding"),
        ({"target_modules": ["other"]}, {}, "the method calls no layer that the adapter `math` changes"),
        ({**QUERY, "use_dora": True}, {}, "`use_dora` asks for something else than LoRA of linear layers"),
        (QUERY, {"entry": "read"}, "reads the weights of `block.query` without calling it"),
        (
            QUERY,
            {"executorch": {"do_quant_fusion_and_const_prop": True}, "defaults": {}},
            "a pass computed something from the adapter's weight `block.query.adapters.math.lora_A`",
        ),
    ],
)
def test_what_an_adapter_cannot_do_is_an_error(
    config: dict[str, Any], keys: dict[str, Any], message: str, build: Build
) -> None:
    entry = keys.pop("entry", "forward")
    data = json.loads(manifest({"math": "math"}, **keys))
    data["methods"]["forward_math"]["entry"] = entry
    if entry == "read":
        config = {**config, "target_modules": ["query", "value"]}
    tensors = weights([name for name in TARGETS if name.endswith(tuple(config["target_modules"]))], 2, 1)
    given = files("math", config, tensors)
    built = build(json.dumps(data), files=given, model=MODEL)
    assert built.code in (1, 2)
    assert message in built.err, built.err


def test_a_regular_expression_that_never_ends_is_an_error(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_config, "_MATCHING", 0.5)
    endless = f"({'.*' * 30})*x"
    tensors = weights(["block.query"], 2, 1)
    for config in ({"target_modules": endless}, {"target_modules": ["query"], "rank_pattern": {endless: 4}}):
        built = build(manifest({"math": "math"}), files=files("math", config, tensors), model=MODEL)
        assert built.code == 2
        assert "cannot find the layers of its regular expressions: it takes more than 0.5 seconds" in built.err


SCALED = """
import torch

class Scaled(torch.nn.Linear):
    def forward(self, input, scale, shift=0.0):
        return super().forward(input) * scale + shift

class Both(torch.nn.Linear):
    def forward(self, input):
        return super().forward(input), input

class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = {"scaled": Scaled, "both": Both}.get(kind, torch.nn.Linear)(8, 8)
        self.kind = kind
        if kind == "twice":
            self.again = self.layer

    def forward(self, x):
        if self.kind == "scaled":
            return self.layer(x, 2.0) + self.layer(scale=3.0, input=x, shift=1.0)
        return self.again(self.layer(x)) if self.kind == "twice" else self.layer(x)[0]

def create(kind):
    torch.manual_seed(0)
    return Net(kind)
"""


def scaled(build: Build, kind: str, target: str) -> tuple[Outcome, Tensors]:
    """Builds a model with a layer of one kind, and an adapter for a layer. Returns the weights of the adapter too."""
    tensors = {f"base_model.model.layer.lora_{name}.weight": torch.randn(8, 8) for name in "AB"}
    data = json.loads(manifest({"math": "math"}))
    data["model"]["kwargs"] = {"kind": kind}
    given = files("math", {"target_modules": [target], "r": 8, "lora_alpha": 4}, tensors)
    return build(json.dumps(data), files=given, model=SCALED), tensors


def test_an_adapter_takes_the_first_input_of_its_layer(build: Build, tmp_path: Path) -> None:
    built, tensors = scaled(build, "scaled", "layer")
    assert built.code == 0, built.err
    [actual] = outputs(built, tmp_path, "forward_math")
    namespace: dict[str, Any] = {}
    exec(SCALED, namespace)
    first, second = tensors.values()
    added = 2 * 0.5 * (INPUT @ first.T @ second.T)
    with torch.no_grad():
        wanted = namespace["create"]("scaled")(INPUT) + added
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


def test_layers_that_an_adapter_cannot_change_as_peft_does_are_errors(build: Build) -> None:
    built, _ = scaled(build, "twice", "layer")
    assert built.code == 2
    assert "the adapter changes the layer `layer`, which is also called `again`" in built.err
    built, _ = scaled(build, "both", "layer")
    assert built.code == 1
    assert "the adapter `math` changes the layer `layer`, which returns a tuple" in built.err


def test_a_quantized_language_model_has_a_method_for_each_adapter(tmp_path: Path) -> None:
    """The manifest names no method. The model is in named data once, and the adapter is not quantized."""
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        IntxWeightOnlyConfig,
        PerAxis,
        PerGroup,
        quantize_,
    )

    from tests.helpers.language_models import CACHES, VOCABULARY, model, project

    quantize = {"torchao": [{"config": "8da4w", "group_size": 32}, {"config": "int8", "layers": ["embedding"]}]}
    keys = {
        "defaults": {"partitioners": ["xnnpack"], "quantize": quantize},
        "named_data": {"foundation": {"parameters": ["*"]}},
        "checks": {"max_duplicate_bytes": 0},
    }
    path, module = project(tmp_path, "qwen", CACHES["custom"], **keys), model("qwen")
    data = json.loads(path.read_text())
    data["model"]["adapters"] = {"math": "math"}
    path.write_text(json.dumps(data))
    numbers, tensors = torch.Generator().manual_seed(1), {}
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            first = torch.randn(4, layer.in_features, generator=numbers) / 4
            tensors[f"base_model.model.{name}.lora_A.weight"] = first
            second = torch.randn(layer.out_features, 4, generator=numbers)
            tensors[f"base_model.model.{name}.lora_B.weight"] = second / 4
    given = files("math", {"target_modules": "all-linear", "r": 4, "lora_alpha": 8}, tensors)
    (tmp_path / "math").mkdir()
    for name, content in given.items():
        (tmp_path / name).write_bytes(content)
    commands.build(path, tmp_path / "out")
    assert sorted(file.name for file in tmp_path.glob("out/*.ptd")) == ["net.foundation.ptd", "net.math.ptd"]
    quantize_(module, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)))
    embedding = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    quantize_(module, embedding, lambda layer, _: isinstance(layer, torch.nn.Embedding))
    ids = torch.arange(4, 20)[None] % VOCABULARY
    calls = [(name, [part, at]) for name in ("forward", "forward_math") for part, at in ((ids, torch.tensor([0])),)]
    [[(forward,), (in_math,)]] = run(tmp_path / "out/net.pte", [calls], tmp_path)
    with torch.no_grad():
        base = module(input_ids=ids).logits[:, -1]
        with adapted(module, tensors, lambda _: 2):
            wanted = module(input_ids=ids).logits[:, -1]
    for actual, of_eager in ((forward, base), (in_math, wanted)):
        assert (actual - of_eager).abs().mean() < 0.06 * of_eager.abs().mean()
    assert (wanted - base).abs().mean() > 0.5 * base.abs().mean()


def test_weights_that_do_not_fit_are_named(build: Build) -> None:
    tensors = weights(["block.query"], 2, 1)
    tensors["base_model.model.block.query.lora_A.weight"] = torch.zeros(3, 8)
    tensors["base_model.model.block.value.lora_A.weight"] = torch.zeros(2, 8)
    built = build(manifest({"math": "math"}), files=files("math", QUERY, tensors), model=MODEL)
    assert built.code == 2
    assert "`base_model.model.block.query.lora_A.weight` has to be [2, 8], and is [3, 8] in `math/" in built.err
    assert (
        "`math/adapter_model.safetensors` has `base_model.model.block.value.lora_A.weight`, which is not" in built.err
    )
    tensors = {**weights(["block.query"], 2, 1), "base_model.model.head.base_layer.weight": torch.zeros(4, 16)}
    tensors["base_model.model.table.weight"] = torch.zeros(4, 8)  # PEFT saves these with `save_embedding_layers`
    built = build(manifest({"math": "math"}), files=files("math", QUERY, tensors), model=MODEL)
    assert built.code == 2
    for name in ("head.base_layer", "table"):
        assert f"`base_model.model.{name}.weight`" in built.err
    assert "which is a weight of the model itself" in built.err
    assert "save_embedding_layers=False" in built.err
    pointer = {**files("math", QUERY, tensors), "math/adapter_model.safetensors": b"version https://git-lfs.github.com"}
    built = build(manifest({"math": "math"}), files=pointer, model=MODEL)
    assert built.code == 2
    assert "`math/adapter_model.safetensors` is a pointer of git-lfs" in built.err


GATES = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(40))
        self.adapters = torch.nn.ModuleDict({"math": torch.nn.Linear(4, 4)})

    def forward(self, x):
        return torch.cat([gate(self.adapters["math"](x)) for gate in self.gates], -1)

def create():
    torch.manual_seed(1)
    return Net()
"""


def test_weights_of_one_element_are_told_apart(build: Build, tmp_path: Path) -> None:
    """A gate has an adapter whose second factor is one number. The model has an own child with the adapter's name."""
    numbers = torch.Generator().manual_seed(3)
    tensors = {}
    for gate in range(40):
        tensors[f"base_model.model.gates.{gate}.lora_A.weight"] = torch.randn(1, 4, generator=numbers)
        tensors[f"base_model.model.gates.{gate}.lora_B.weight"] = torch.randn(1, 1, generator=numbers)
    config = {"r": 1, "lora_alpha": 1, "target_modules": [str(gate) for gate in range(40)]}
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", adapters: {math: math}}
methods:
  forward: {adapter: math, partitioners: [xnnpack], example_inputs: [{shape: [2, 4]}]}
"""
    made = build(manifest, files=files("math", config, tensors), model=GATES)
    scope: dict[str, Any] = {}
    exec(GATES, scope)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    [found] = outputs(made, tmp_path, "forward", x=x)
    torch.testing.assert_close(found, expected(tensors, lambda name: 1.0, scope["create"](), x), rtol=1e-4, atol=1e-4)


def test_a_name_that_modules_need_is_no_name_of_an_adapter(build: Build) -> None:
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", adapters: {train: train}}
methods: {forward: {adapter: train, example_inputs: [{shape: [2, 4]}]}}
"""
    config = {"r": 1, "lora_alpha": 1, "target_modules": ["gates.0"]}
    made = build(manifest, files=files("train", config, {}), model=GATES)
    assert made.code == 2
    assert "`train` cannot be the name of an adapter: PyTorch's modules have an attribute `train`" in made.err
