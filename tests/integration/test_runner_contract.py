"""The constants of a runner's contract, from configurations of transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etbuild.errors import InputError
from etbuild.key.declared import Inputs
from etbuild.plan.plan import from_manifest
from etplugins.transformers import runner_contract

transformers = pytest.importorskip("transformers")


def contract(config: dict[str, Any], data: dict[str, Any] | None = None, **keys: Any) -> dict[str, object]:
    huggingface = {"task": "text-generation", "cache": {"max_length": 32, "max_seq_length": 8}}
    huggingface |= keys.pop("huggingface", {})
    manifest: Any = {"schema": "executorch-model/v1", "name": "net", "model": {"huggingface": huggingface}}
    plan = from_manifest(manifest | {"runner": "executorch-llm/v1", **keys}).export_plan
    module = SimpleNamespace(config=transformers.LlamaConfig(vocab_size=64, **config))
    return runner_contract.constants(plan, module, Inputs(data=data or {}))


def test_a_model_without_a_first_token_has_no_constant_for_it() -> None:
    assert "get_bos_id" not in contract({"bos_token_id": None, "eos_token_id": 3})


def test_a_generation_config_comes_before_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "generation.json").write_text('{"eos_token_id": [5, 6], "bos_token_id": null}')
    data = {"generation.json": tmp_path / "generation.json"}
    found = contract({"bos_token_id": 2, "eos_token_id": 3}, data, huggingface={"generation_config": "generation.json"})
    assert (found["get_eos_ids"], found["get_bos_id"]) == ([5, 6], 2)


def test_a_call_of_one_token_is_not_dynamic() -> None:
    inputs = [{"shape": [1, 1], "dtype": "int64"}, {"shape": [1], "dtype": "int64"}]
    found = contract({"eos_token_id": 3}, methods={"forward": {"example_inputs": inputs}})
    assert (found["enable_dynamic_shape"], found["get_max_seq_len"], found["get_max_context_len"]) == (False, 32, 32)


def test_constants_of_the_manifest_are_left_out() -> None:
    constants = {"get_eos_ids": [1], "get_vocab_size": 60}
    found = contract({"eos_token_id": 1000}, constant_methods=constants)
    assert not found.keys() & constants.keys()


def test_a_download_that_failed_is_no_generation_config(tmp_path: Path) -> None:
    (tmp_path / "generation.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    data = {"generation.json": tmp_path / "generation.json"}
    with pytest.raises(InputError, match=r"`generation\.json` is a pointer of git-lfs"):
        contract({"eos_token_id": 3}, data, huggingface={"generation_config": "generation.json"})


@pytest.mark.parametrize(
    ("config", "keys", "message"),
    [
        ({"eos_token_id": None}, {}, "nothing says which tokens end a text"),
        ({"eos_token_id": 64}, {}, "`eos_token_id` is 64, which is not in the vocabulary of 64 tokens"),
        (
            {"eos_token_id": 3},
            {"huggingface": {"generation_config": {"eos_token_ids": 3}}},
            "`GenerationConfig` has no `eos_token_ids`",
        ),
        ({"eos_token_id": 3}, {"huggingface": {"generation_config": "no.json"}}, "`no.json` is not a declared input"),
        (
            {"eos_token_id": 3},
            {
                "methods": {
                    "forward": {
                        "example_inputs": [{"shape": [1, 4], "dtype": "int64"}, {"shape": [1], "dtype": "int64"}]
                    }
                }
            },
            "the runner decodes one token in each call, and `forward` takes 4 or more",
        ),
        (
            {"eos_token_id": 3},
            {
                "methods": {
                    "forward": {
                        "example_inputs": [{"shape": [1, 4], "dtype": "int64"}, {"shape": [1], "dtype": "int64"}],
                        "dynamic_shapes": [[None, {"dim": "seq", "min": 0, "max": 8, "multiple_of": 2}], None],
                    }
                }
            },
            "the runner gives any number of tokens to `forward`, which takes multiples of 2",
        ),
    ],
)
def test_what_the_runner_cannot_run_is_an_error(config: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        contract(config, **keys)
    assert message in str(error.value)
