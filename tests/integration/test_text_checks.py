"""`checks.text` compares a language model with transformers on a text; `etbuild test` takes several manifests."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch

from etbuild.cli import main
from etkit.running.testing import text_scores
from etplugins.model_tests.parts import TextTest
from tests.helpers.language_models import CACHES, LETTERS, project
from tests.helpers.manifests import net

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

MODEL = net(forward="return {}")
TEXT = "".join(LETTERS[(7 * index * index + index // 3) % 26] for index in range(120))
LIMITS = {"max_perplexity_change": 0.001, "max_divergence": 1e-5, "min_same_choices": 1, "min_equal_tokens": 32}
LINEAR = {"defaults": {"partitioners": ["xnnpack"], "quantize": {"torchao": [{"config": "8da4w", "group_size": 32}]}}}


def checked(manifest: Path, capfd: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, Any]], str]:
    capfd.readouterr()
    cache = str(manifest.parent / "cache")
    code = main.main(["test", str(manifest), "--filter", "checks/text/*", "--json", "--cache-dir", cache, *options])
    captured = capfd.readouterr()
    return code, json.loads(captured.out)["tests"] if captured.out else [], captured.err


def test_a_text_passes_and_a_quantized_variant_breaks_its_limits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = {"file": "text.txt", "tokens": 100, **LIMITS}
    variants = {"small": {**LINEAR, "checks": {"text": {"max_perplexity": 1}}}}
    manifest = project(tmp_path, "qwen", CACHES["static"], checks={"text": text}, variants=variants)
    (tmp_path / "text.txt").write_text(TEXT)
    code, [result], err = checked(manifest, capfd)
    assert (code, result["state"]) == (0, "passed"), (result, err)
    measured = result["measured"]
    assert (measured["equal_tokens"], measured["same_choices"], measured["tokens"] > 60) == (32, 1, True), result
    assert measured["perplexity"] == pytest.approx(measured["perplexity_transformers"], rel=1e-4)
    assert measured["perplexity"] > 1.5  # the text is not what the model would say
    code, [result], err = checked(manifest, capfd, "--variant", "small")
    assert (code, result["state"]) == (3, "failed"), (result, err)
    broken = ("max_perplexity: ", "max_divergence: ", "min_same_choices: ")
    assert [name for name in broken if name not in result["detail"]] == [], result
    assert 0 < result["measured"]["divergence"] <= result["measured"]["largest_divergence"], result


def test_several_manifests_and_variants_are_tested_by_one_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both folders have a `model.py` of their own, and one of the programs cannot be built."""
    for name, line in (("first", "x + 1"), ("second", "x * 3"), ("third", "x.no_such()")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(MODEL.format(line))
        (tmp_path / name / f"{name}.yaml").write_text(
            f"schema: executorch-model/v1\nname: {name}\nmodel: {{factory: 'model:create'}}\n"
            "methods: {forward: {example_inputs: [{shape: [2, 3]}]}}\nvariants: {again: {}}\n"
        )
    cache, junit = str(tmp_path / "cache"), tmp_path / "junit.xml"
    words = ("--cache-dir", cache, "--variant", "all", "--json", "--junit", str(junit), "--filter", "*example")
    code = main.main(["test", str(tmp_path), *words])
    found = {each["program"]: each["tests"] for each in json.loads(capfd.readouterr().out)}
    states = {name: {each["name"]: each["state"] for each in tests} for name, tests in found.items()}
    right, wrong = {"forward/example": "passed"}, {"build": "failed"}
    names = {"first": right, "second": right, "third": wrong}
    assert (code, states) == (3, {f"{name}{more}": state for name, state in names.items() for more in ("", ".again")})
    assert "no_such" in found["third"][0]["detail"]
    assert len(ET.parse(junit).getroot()) == 6
    code = main.main(["test", str(tmp_path / "first"), *words[:2], "--json", "--shard", "9/9"])
    assert (code, json.loads(capfd.readouterr().out)) == (0, [{"program": "first", "tests": []}])  # a list for a folder
    out = tmp_path / "out"
    folders = [str(tmp_path / name) for name in ("first", "third")]
    assert main.main(["build", *folders, "-o", str(out), "--cache-dir", cache]) == 1
    assert [path.name for path in out.glob("*.pte")] == ["first.pte"]  # an error leaves the other programs
    assert "(in the program third)" in capfd.readouterr().err
    shutil.copytree(tmp_path / "first", tmp_path / "copies/first")
    assert main.main(["build", str(tmp_path / "first"), str(tmp_path / "copies"), "-o", str(out)]) == 2
    assert "both make `first`, and would write the same files" in capfd.readouterr().err


def test_scores_that_are_no_numbers_break_each_limit() -> None:
    right = torch.tensor([[1.0, 2.0, 3.0], [1.0, -torch.inf, 1.0]])
    assert text_scores.divergences(right, right).tolist() == [0, 0]
    wrong = torch.tensor([[1.0, torch.nan, 3.0], [-torch.inf, 1.0, 1.0]])
    assert text_scores.divergences(wrong, right).isnan().tolist() == [True, False]
    assert text_scores.divergences(wrong, right)[1] == torch.inf
    assert text_scores.divergences(right, wrong)[0].isnan()
    limits = dict.fromkeys(("max_perplexity", "max_perplexity_change", "max_divergence", "min_same_choices"), 1.0)
    text = TextTest(file="text.txt", tokens=2, **limits, min_equal_tokens=1)
    names = ("perplexity", "perplexity_transformers", "divergence", "same_choices", "equal_tokens")
    assert len(text_scores.broken(text, dict.fromkeys(names, torch.nan))) == 5


@pytest.mark.parametrize(
    ("content", "said"), [(b"a", "the text has 1 token,"), (b"\xff\xfe", "cannot be read as a text")]
)
def test_a_text_that_cannot_be_compared_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    manifest = project(tmp_path, "qwen", CACHES["static"], checks={"text": {"file": "text.txt", **LIMITS}})
    (tmp_path / "text.txt").write_bytes(content)
    _, [result], _ = checked(manifest, capfd)
    assert (result["state"], said in result["detail"]) == ("failed", True), result
