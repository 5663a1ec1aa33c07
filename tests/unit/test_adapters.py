"""LoRA adapters in manifests and plans, and PEFT's configuration of one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from etbuild.errors import InputError
from etbuild.key.declared import Inputs
from etbuild.manifest import validate
from etbuild.plan.plan import Plan, from_manifest
from etbuild.plan.step_plans import LowerPlan, MethodPlan
from etplugins.lora import config as adapter_config
from etplugins.lora.config import AdapterConfig

WRITTEN: dict[str, Any] = {  # what PEFT 0.21 writes, with the keys that matter
    "alpha_pattern": {},
    "base_model_name_or_path": "Qwen/Qwen3-0.6B",
    "bias": "none",
    "exclude_modules": None,
    "init_lora_weights": True,
    "layers_to_transform": None,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "qalora_group_size": 16,
    "r": 8,
    "rank_pattern": {},
    "target_modules": ["q_proj", "v_proj"],
    "task_type": "CAUSAL_LM",
    "use_dora": False,
    "use_rslora": False,
}


@pytest.mark.parametrize("name", ["pte", "export"])
def test_an_adapter_has_no_name_of_another_output(name: str, tmp_path: Path) -> None:
    model = {"factory": "model:create", "adapters": {name: "folder"}}
    methods = {"forward": {"adapter": name, "example_inputs": [{"shape": [1]}]}}
    manifest = tmp_path / "model.yaml"
    manifest.write_text(
        json.dumps({"schema": "executorch-model/v1", "name": "net", "model": model, "methods": methods})
    )
    with pytest.raises(InputError, match=f"`{name}` cannot be a tag: NAME.{name} is another output"):
        validate.load(manifest)


def read(directory: Path, content: Any) -> AdapterConfig:
    (directory / "adapter_config.json").write_text(json.dumps(content))
    return adapter_config.read("adapter_config.json", ("model",), Inputs(roots=[directory]))


@pytest.mark.parametrize(
    ("changed", "layers"),
    [
        ({}, {"layers.0.q_proj": (8, 2), "layers.1.v_proj": (8, 2), "q_proj": (8, 2)}),
        ({"target_modules": r".*\.1\..*_proj"}, {"layers.1.q_proj": (8, 2), "layers.1.v_proj": (8, 2)}),
        ({"target_modules": "all-LINEAR", "exclude_modules": ["q_proj"]}, {"layers.0.v_proj": (8, 2), "head": (8, 2)}),
        ({"exclude_modules": "layers.*", "use_rslora": True}, {"q_proj": (8, 16 / math.sqrt(8))}),
        (
            {"rank_pattern": {r"0\.q_proj": 4, "q_proj": 2}, "alpha_pattern": {"v_proj": 24, "^q_proj": 1}},
            {"layers.0.q_proj": (4, 4), "layers.1.q_proj": (2, 8), "layers.0.v_proj": (8, 3), "q_proj": (2, 0.5)},
        ),
    ],
)
def test_the_layers_ranks_and_factors_are_those_of_peft(
    changed: dict[str, Any], layers: dict[str, tuple[int, float]], tmp_path: Path
) -> None:
    config = read(tmp_path, {**WRITTEN, **changed})
    for layer, (rank, factor) in layers.items():
        assert config.changes(layer)
        assert config.rank_of(layer) == rank
        assert config.factor_of(layer) == pytest.approx(factor)
    known = {f"layers.{number}.{name}" for number in (0, 1) for name in ("q_proj", "v_proj", "k_proj")}
    listed = isinstance(config.targets, list) and not config.excluded
    assert not listed or {layer for layer in known if config.changes(layer)} == known - {
        "layers.0.k_proj",
        "layers.1.k_proj",
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"use_dora": True}, "`use_dora` asks for something else"),
        ({"modules_to_save": ["lm_head"]}, "`modules_to_save` asks for something else"),
        ({"layers_to_transform": 0}, "`layers_to_transform` asks for something else"),
        ({"what_comes_later": {"a": 1}}, "`what_comes_later` asks for something else"),
        ({"bias": "all"}, "`bias: all` also changes"),
        ({"init_lora_weights": "pissa"}, "`init_lora_weights: pissa` also changes"),
        ({"bias": "a\nb" + "c" * 1000}, f"`bias: a b{'c' * 97}` also changes"),
        ({"target_modules": "a|" * 9000}, "`target_modules` has 18,000 characters, and at most 10,000 are read"),
        ({"target_modules": "("}, "`target_modules` is not a regular expression"),
        ({"alpha_pattern": {"a{1": 1, "(": 1}}, r"`alpha_pattern.(` is not a regular expression"),
        ({"peft_type": "IA3"}, "is not the configuration of a LoRA adapter: peft_type"),
        ({"r": 0}, "is not the configuration of a LoRA adapter: r"),
        (
            {"target_modules": None},
            "a LoRA adapter: target_modules: null does not fit: A regular expression, or a list of names of layers",
        ),
    ],
)
def test_what_is_more_than_lora_of_linear_layers_is_named(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, {**WRITTEN, **changed})
    assert message in str(error.value)


def planned(tmp_path: Path, **keys: Any) -> Plan:
    huggingface = {"task": "text-generation", "cache": {"max_length": 64}}
    model = {"huggingface": huggingface, "weights": "model.safetensors", "adapters": {"math": "math", "code": "b/code"}}
    manifest = {"schema": "executorch-model/v1", "name": "net", "model": model, **keys}
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps(manifest))
    return from_manifest(validate.load(path).data)


def test_a_task_writes_a_method_for_each_adapter(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert {name: method.adapter for name, method in plan.methods.items()} == {
        "forward": None,
        "forward_code": "code",
        "forward_math": "math",
    }
    assert len({json.dumps(method.to_json()["example_inputs"]) for method in plan.methods.values()}) == 1
    assert plan.tags == ["code", "math"]


def test_each_step_reads_its_files_of_an_adapter(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert set(plan.export_plan.data_names) == {"math/adapter_config.json", "b/code/adapter_config.json"}
    weights = {"math/adapter_model.safetensors", "b/code/adapter_model.safetensors"}
    assert set(plan.lower_plan.data_names) == {"model.safetensors", *weights}
    assert set(plan.lower_plan.of_method("forward_math").data_names) == {"model.safetensors"}
    assert set(plan.data_names) == {*plan.export_plan.data_names, *plan.lower_plan.data_names}


def test_plans_with_adapters_are_read_back(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert Plan.from_json(plan.to_json()) == plan
    assert LowerPlan.from_json(plan.lower_plan.to_json()) == plan.lower_plan
    method = plan.lower_plan.of_method("forward_math")
    assert "adapters" not in method.to_json()
    assert MethodPlan.from_json(method.to_json()) == method
