"""Variants are merged over a manifest by key, parameters are values, and each value keeps the place where it was
written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest

from etbuild.cli import main
from etbuild.errors import InputError
from etbuild.manifest import validate

HEAD = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", kwargs: {dim: 8, layers: {parameter: layers}}}
parameters: {layers: {type: int, default: 2, min: 1, max: 4}}
defaults: {partitioners: [xnnpack]}
methods:
  forward: {example_inputs: [{shape: [1, 8]}]}
  step: {example_inputs: [{shape: [1, 8]}]}
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Any:
    """Writes a manifest that starts with HEAD, and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "net.yaml"
        path.write_text(HEAD + text)
        return path

    return write


def resolved(path: Path, variant: str | None = None, **settings: object) -> Any:
    return validate.load(path, variant=variant, settings=settings).data


def test_without_a_variant_nothing_of_the_variants_is_left(manifest: Any) -> None:
    data = resolved(manifest("variants: {ios: {defaults: {partitioners: [coreml]}}}\n"))
    assert data["name"] == "net"
    assert data["defaults"] == {"partitioners": ["xnnpack"]}
    assert data["model"]["kwargs"] == {"dim": 8, "layers": 2}
    assert not {"variants", "parameters"} & data.keys()


@pytest.mark.parametrize(
    ("variant", "key", "expected"),
    [
        pytest.param("{model: {seed: 3}}", "model.seed", 3, id="a new key"),
        pytest.param("{model: {seed: 3}}", "model.factory", "model:create", id="the other keys stay"),
        pytest.param("{model: {kwargs: {dim: 4}}}", "model.kwargs", {"dim": 4, "layers": 2}, id="mappings in mappings"),
        pytest.param("{model: {kwargs: {dim: null}}}", "model.kwargs", {"layers": 2}, id="null removes"),
        pytest.param("{model: {kwargs: {layers: 7}}, parameters: null}", "model.kwargs.layers", 7, id="no parameter"),
        pytest.param("{model: {kwargs: {dim: {parameter: layers}}}}", "model.kwargs.dim", 2, id="another reference"),
        pytest.param("{parameters: {layers: {default: 4}}}", "model.kwargs.layers", 4, id="another default"),
        pytest.param("{defaults: {partitioners: []}}", "defaults.partitioners", [], id="lists are replaced"),
        pytest.param(
            "{methods: {step: null, third: {example_inputs: [{value: null}]}}}",
            "methods",
            {
                "forward": {"example_inputs": [{"shape": [1, 8]}]},
                "third": {"example_inputs": [{"value": None}]},
            },
            id="null in a list is a value",
        ),
    ],
)
def test_a_variant_is_merged_by_key(variant: str, key: str, expected: object, manifest: Any) -> None:
    value: Any = resolved(manifest(f"variants: {{other: {variant}}}\n"), "other")
    assert value["name"] == "net.other"
    for part in key.split("."):
        value = value[part]
    assert value == expected


def test_a_value_has_the_position_where_it_was_written(manifest: Any) -> None:
    path = manifest("variants:\n  ios:\n    methods:\n      forward: {partitioners: [coreml]}\n")
    positions = validate.load(path, variant="ios").positions
    assert positions["methods", "forward", "partitioners", 0].line == 12
    assert positions["methods", "forward", "example_inputs", 0].line == 7
    assert positions["model", "kwargs", "layers"].line == 3


def test_an_error_without_a_variant_is_told_once(manifest: Any) -> None:
    path = manifest("report: {blobs: 3}\nvariants: {a: {model: {seed: 1}}, b: {report: {operators: 4}}}\n")
    with pytest.raises(InputError) as error:
        validate.load_each(path)
    assert [problem.path for problem in error.value.problems] == [
        ("report", "blobs"),
        ("variants", "b", "report", "operators"),
    ]


def test_an_unknown_variant_has_a_suggestion(manifest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest("variants: {ios: {}, android: {}}\n")
    assert main.main(["plan", str(path), "--variant", "androud"]) == 2
    said = capsys.readouterr().err
    assert "net.yaml:9:1: variants: there is no variant `androud`" in said
    assert "did you mean `android`?" in said


def test_plan_shows_a_variant(manifest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest("variants: {ios: {defaults: {partitioners: [portable]}}}\n")
    (path.parent / "model.py").write_text("")
    assert main.main(["plan", str(path), "--variant", "ios", "--set", "layers=3"]) == 0
    plan = json.loads(capsys.readouterr().out)["inputs"]["plan"]
    assert plan["name"] == "net.ios"
    assert plan["model"]["kwargs"] == {"dim": 8, "layers": 3}
    assert plan["methods"]["step"]["partitioners"] == [{"backend": "portable", "options": {}}]


def test_a_parameter_changes_the_key(manifest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest("")
    (path.parent / "model.py").write_text("")
    keys = []
    for option in ([], ["--set", "layers=2"], ["--set", "layers=3"]):
        assert main.main(["plan", str(path), *option]) == 0
        keys.append(json.loads(capsys.readouterr().out)["key"])
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("kind", "default", "setting", "expected"),
    [
        ("int", "2", "-3", -3),
        ("float", "2", "3", 3.0),
        ("float", "2.5", "1e-5", 1e-5),
        ("bool", "true", "false", False),
        ("string", "big", "a=b, {c}", "a=b, {c}"),
        ("string", "big", "", ""),
        ("int", "2", numpy.int64(-3), -3),
        ("float", "2", 3, 3.0),
        ("float", "2.5", 1e-5, 1e-5),
        ("bool", "true", False, False),
    ],
)
def test_a_setting_becomes_a_value_of_the_type(
    kind: str, default: str, setting: object, expected: object, tmp_path: Path
) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(HEAD.replace("{type: int, default: 2, min: 1, max: 4}", f"{{type: {kind}, default: {default}}}"))
    value = resolved(path, layers=setting)["model"]["kwargs"]["layers"]
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        *(("int", text) for text in ("2.0", "1_0", " 3", "9" * 30, "", "\u0663")),
        *(("float", text) for text in ("inf", "1e999", ".", "")),
        *(("bool", text) for text in ("True", "1")),
        ("string", "\ud800"),
        *((kind, setting) for kind in ("int", "float", "bool", "string") for setting in (None, [1], {"a": 1})),
        *(("int", setting) for setting in (True, 2.0, 1 << 64)),
        *(("float", setting) for setting in (True, math.inf, math.nan)),
        *(("bool", setting) for setting in (1, 0.0)),
        *(("string", setting) for setting in (1, True)),
    ],
)
def test_a_setting_that_is_not_of_the_type_is_refused(kind: str, setting: object, tmp_path: Path) -> None:
    default = {"bool": "true", "string": "a"}.get(kind, "2")
    path = tmp_path / "net.yaml"
    path.write_text(HEAD.replace("{type: int, default: 2, min: 1, max: 4}", f"{{type: {kind}, default: {default}}}"))
    with pytest.raises(InputError, match=r"expected (a|true)") as error:
        resolved(path, layers=setting)
    [problem] = error.value.problems
    assert problem.position is not None
    assert problem.position.line == 4


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("layers=9", "net.yaml:4:14: parameters.layers: `--set layers=9`: must be at most 4, got 9"),
        ("layer=3", "`--set layer=3`: there is no parameter `layer`"),
        ("layers", "--set layers: expected NAME=VALUE"),
        ("=3", "--set =3: expected NAME=VALUE"),
    ],
)
def test_a_wrong_setting_is_an_error(
    option: str, message: str, manifest: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["validate", str(manifest("")), "--set", option]) == 2
    assert message in capsys.readouterr().err


def test_two_values_of_a_parameter_are_an_error(manifest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", str(manifest("")), "--set", "layers=3", "--set", "layers=4"]) == 2
    assert "the parameter `layers` is set twice, to 3 and to 4" in capsys.readouterr().err


def test_a_setting_that_a_variant_does_not_use_is_an_error(manifest: Any) -> None:
    path = manifest("variants: {fixed: {model: {kwargs: {layers: 3}}}}\n")
    with pytest.raises(InputError, match="`--set layers=4` would have no effect"):
        resolved(path, "fixed", layers="4")


def test_a_parameter_may_be_the_name(tmp_path: Path) -> None:
    """So several targets of one package can build one manifest with several values."""
    path = tmp_path / "net.yaml"
    text = HEAD.replace("name: net", "name: {parameter: name}")
    path.write_text(text.replace("parameters: {", "parameters: {name: {type: string, default: net}, "))
    assert resolved(path)["name"] == "net"
    assert resolved(path, name="large")["name"] == "large"
    with pytest.raises(InputError, match="does not fit"):
        resolved(path, name="../large")


def test_validate_checks_every_variant(manifest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest("variants: {ios: {}, android: {defaults: {partitioners: [xnnpak]}}}\n")
    assert main.main(["validate", str(path)]) == 2
    assert "net.yaml:9:57: variants.android.defaults.partitioners[0]: unknown backend" in capsys.readouterr().err
