"""Plans and their parts are immutable values with typed fields. `tests/typing/plans.py` has uses that mypy rejects."""

from __future__ import annotations

from typing import Any

import pytest

from etbuild.plan.part import Part
from etbuild.plan.parts import (
    BackendEntry,
    ContainerExample,
    Dim,
    FactoryCall,
    FileExample,
    ModuleSource,
    NamedData,
    TensorExample,
    ValueExample,
    read_example,
    read_shapes,
)
from etplugins.quantize.parts import BatchesFile, TorchaoEntry, read_calibration
from etplugins.recipes.parts import RecipeCall


def test_a_part_is_equal_to_one_of_its_class_with_equal_fields() -> None:
    assert NamedData(("*",), None, False) == NamedData(parameters=("*",), shard_size=None, adapter=False)
    assert NamedData(("*",), None, False) != NamedData(("*",), 1, False)
    assert FactoryCall("a:a", {}) != RecipeCall("a:a", {})
    assert len({NamedData(("*",), None, False), NamedData(("*",), None, False), NamedData(("*",), 1, False)}) == 2


def test_a_part_does_not_change() -> None:
    part: Any = NamedData(("*",), None, False)
    with pytest.raises(AttributeError, match="NamedData is immutable"):
        part.shard_size = 1
    assert part.replace(shard_size=1) == NamedData(("*",), 1, False)
    assert part.shard_size is None


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((), {}),
        ((("*",), None, False, 1), {}),
        ((("*",), None, False), {"tag": 1}),
        ((("*",), None, False), {"shard_size": 1}),
    ],
)
def test_each_field_is_given_once(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    make: Any = NamedData
    with pytest.raises(TypeError, match="NamedData takes parameters, shard_size, adapter, each once"):
        make(*values, **named)


def test_a_subclass_has_the_fields_of_its_base_first() -> None:
    class Base(Part):
        a: int

    class Derived(Base):
        b: int

    assert repr(Derived(1, 2)) == "Derived(a=1, b=2)"
    assert Derived(1, 2).to_json() == {"a": 1, "b": 2}
    assert Base(1) != Derived(1, 2)


@pytest.mark.parametrize(
    ("document", "part"),
    [
        ({"shape": [1, 2], "dtype": "int64", "fill": "zeros"}, TensorExample((1, 2), "int64", "zeros")),
        ({"factory": "a:a", "kwargs": {"b": [1]}}, FactoryCall("a:a", {"b": [1]})),
        ({"file": "a.pt"}, FileExample("a.pt", None, None)),
        ({"file": "a.pt", "key": "x"}, FileExample("a.pt", "x", None)),
        ({"value": None}, ValueExample(None)),
        ({"tuple": [{"value": 1}]}, ContainerExample("tuple", {0: ValueExample(1)})),
        ({"dict": {"a": {"list": []}}}, ContainerExample("dict", {"a": ContainerExample("list", {})})),
    ],
)
def test_example_inputs_and_their_json(document: dict[str, Any], part: Part) -> None:
    assert read_example(document) == part
    assert part.to_json() == document


def test_a_key_that_is_missing_has_its_default() -> None:
    assert BackendEntry.from_json("xnnpack") == BackendEntry.from_json({"backend": "xnnpack"})
    assert BackendEntry.from_json("xnnpack").to_json() == {"backend": "xnnpack", "options": {}}
    assert read_example({"shape": [1]}) == TensorExample((1,), "float32", "random")


def test_dynamic_shapes_have_the_form_of_their_input() -> None:
    dim = {"dim": "n", "min": 1, "max": 4}
    assert read_shapes({"a": [None, [dim]], "dim": None}) == {"a": (None, (Dim("n", 1, 4, 1, 1, 0),)), "dim": None}


@pytest.mark.parametrize("document", [{}, {"file": "a.pt"}, {"file": "a.pt", "keys": ["x"]}])
def test_a_calibration_and_its_json(document: dict[str, Any]) -> None:
    assert read_calibration(document).to_json() == document


def test_files_without_keys_are_no_files_without_tensors() -> None:
    assert read_calibration({"file": "a.pt"}) == BatchesFile("a.pt", None) != BatchesFile("a.pt", ())


@pytest.mark.parametrize(
    "own",
    [{"config": "int4", "group_size": None}, {"config": "int4", "group_size": 32}, {"config": "a:a", "kwargs": {}}],
)
def test_a_configuration_of_torchao_and_its_json(own: dict[str, Any]) -> None:
    document = {"modules": ["*"], "layers": ["linear"], **own}
    assert TorchaoEntry.from_json(document).to_json() == document


def test_a_key_that_is_no_field_is_refused() -> None:
    document: dict[str, Any] = {"factory": "a:a", "huggingface": None, "kwargs": {}, "seed": 1, "modules": []}
    assert ModuleSource.from_json(document) == ModuleSource("a:a", None, {}, 1, (), None)
    with pytest.raises(ValueError, match="`weights` is not a key of `ModuleSource`"):
        ModuleSource.from_json({**document, "weights": ["a.pt"]})
