"""The manifests of the benchmarks are valid, so that a change of the schema cannot break a benchmark unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.zoo import zoo
from etbuild.cli.main import main

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("name", zoo.MODELS)
def test_the_manifests_of_the_zoo_are_valid(name: str, tmp_path: Path) -> None:
    assert main(["validate", str(zoo.write(name, tmp_path / "model"))]) == 0


@pytest.mark.parametrize("name", ["model", "real_size"])
def test_the_manifests_of_the_language_models_are_valid(name: str) -> None:
    assert main(["validate", str(BENCHMARKS / f"llm/{name}.yaml")]) == 0


def test_the_zoo_has_many_models_of_one_method_and_of_several() -> None:
    several = [model for model in zoo.MODELS.values() if model.methods is not None and len(model.methods) > 1]
    assert len(zoo.MODELS) >= 20
    assert len(several) >= 8
