"""Schemes of `etbuild tune` as patches of a manifest, which of them are worth it, and how they are drawn; results in
files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etbuild.errors import InputError
from etbuild.manifest import validate
from etkit import kept_results
from etkit.choosing import added, shown
from etkit.choosing.schemes import BASE, Scheme, schemes
from etkit.choosing.trials import Trial, Value, marked
from etkit.kept_results import Kept, Results

DATA: dict[str, Any] = {
    "name": "net",
    "model": {"factory": "m:f"},
    "defaults": {"partitioners": ["xnnpack"]},
    "methods": {"forward": {"example_inputs": [{"shape": [1, 8]}, {"shape": [1], "dtype": "int64"}]}},
}


def merged(base: Any, patch: Any) -> Any:
    """JSON Merge Patch."""
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            del result[key]
        else:
            result[key] = merged(result.get(key), value)
    return result


def of(data: Any) -> dict[str, Any]:
    """The manifest with each scheme."""
    return {each.name: merged(data, each.patch) for each in schemes(data)}


def test_each_scheme_replaces_what_the_manifest_says() -> None:
    quantized = {**DATA, "defaults": {**DATA["defaults"], "quantize": {"torchao": [{"config": "int4"}]}}}
    plain, own = of(DATA), of(quantized)
    assert own.pop("as-it-is") == quantized
    assert plain[BASE] == DATA
    assert own == plain
    assert plain["float16"]["methods"]["forward"]["example_inputs"] == [
        {"shape": [1, 8], "dtype": "float16"},
        {"shape": [1], "dtype": "int64"},
    ]
    int8 = plain["int8"]["defaults"]["quantize"]["pt2e"]
    assert int8 == {
        "quantizers": [{"backend": "xnnpack", "options": {"per_channel": True}}],
        "calibration": "example_inputs",
    }
    assert "calibration" not in plain["int8-dynamic"]["defaults"]["quantize"]["pt2e"]


def test_samples_calibrate_and_methods_in_floats_stay() -> None:
    methods = {
        "encode": {"samples": "a", "quantize": {"torchao": [{"config": "8da4w"}]}},
        "decode": {"example_inputs": []},
    }
    found = of({**DATA, "methods": methods, "samples": {"a": {"files": "*.npy"}}})
    assert found["int8"]["methods"]["encode"]["quantize"]["pt2e"]["calibration"] == "samples"
    assert found["int8"]["methods"]["decode"] == {"example_inputs": []}
    assert "quantize" not in found["int8"]["defaults"]


def test_portable_operators_get_only_weights_of_8_bits() -> None:
    found = of({**DATA, "defaults": {"partitioners": []}})
    assert found.keys() == {BASE, "float16", "int8-weights"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"recipe": "xnnpack_fp32"}, "a recipe decides"),
        ({"methods": {"forward": {"program": "a.pt2"}}}, "each method comes from a file"),
    ],
)
def test_a_manifest_without_a_choice_is_refused(more: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        schemes({**DATA, **more})


def trial(name: str, size: int | None, mean: float, latency: float | None, reason: str = "") -> Trial:
    values = {} if size is None else {"top1": Value(mean, mean, False, True)}
    return Trial(Scheme(name, {"report": {"operators": False}}), size, 10, values, latency, reason)


def test_the_best_are_those_that_no_other_beats() -> None:
    trials = [
        trial("float32", 100, 1.0, 1.0),
        trial("int8", 50, 0.9, 0.5),
        trial("worse", 60, 0.9, 0.6),
        trial("no-slower", 100, 1.0, 1.02),
        trial("failed", None, 0.0, None, "no"),
        trial("spoiled", 40, math.nan, 0.4),
    ]
    best = {each.scheme.name for each in marked(trials) if each.is_best}
    assert {"float32", "int8", "no-slower"} <= best
    assert not best & {"worse", "failed", "spoiled"}


def test_a_scheme_that_breaks_a_limit_is_not_the_best_and_is_not_compared() -> None:
    whole = trial("float32", 100, 1.0, None)
    broken = replace(trial("int8", 50, 1.0, None), agreements={"top1": Value(1.0, 1.0, False, False)})
    lost = replace(trial("int4", 50, 1.0, None), agreements={"error": Value(math.inf, math.inf, True, True)})
    exact = replace(trial("exact", 100, 1.0, None), agreements={"sqnr": Value(math.inf, math.inf, False, True)})
    assert [each.is_best for each in marked([whole, broken, lost, exact])] == [True, False, False, True]
    [none] = marked([broken])
    assert shown.lines([none]) == []
    assert "There is none." in shown.page("net", [none])


def test_any_numbers_can_be_shown() -> None:
    trials = marked([trial("a", 0, math.inf, None), trial("b<", 0, math.nan, 1e-9), trial("c", None, 0, None, "<why>")])
    assert "nan" not in shown.plot("net", trials)
    assert "inf" not in shown.plot("net", trials)
    assert "&lt;why&gt;" in shown.page("net", trials)
    assert shown.as_text(trials).splitlines()[0].startswith("scheme")
    assert "nothing was measured" in shown.plot("net", [trial("c", None, 0, None)])


def test_a_variant_is_one_line_of_yaml() -> None:
    import yaml

    texts = ["a, b", "{a}", "[a]", "]", "a: b", "a #b", "- a", "a\nb", "", " a", "'", '"', "é", "1e5", "no", "?", "a]"]
    patch = {"a": {"b": None, "no": [1, 1e-05, "yes", "1", True], "x, y": texts}, "8da4w": "x: y"}
    line = shown.entry("8da4w", patch)
    assert "\n" not in line
    assert yaml.safe_load(line) == {"8da4w": patch}


def test_a_variant_is_written_only_as_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "m:f"}\n'
    text = head + "methods: {forward: {example_inputs: [{shape: [1, 8]}]}}  # mine\n"
    manifest = tmp_path / "net.yaml"
    patch = {"model": {"kwargs": {"a": "b, c", "d": 1}}}
    trials = [Trial(Scheme("other", patch), 1, is_best=True)]
    manifest.write_text(text)
    assert added.add(manifest, trials) == ["other"]
    assert manifest.read_text().startswith(text)
    assert validate.load(manifest, variant="other").data["model"]["kwargs"] == {"a": "b, c", "d": 1}
    for line in ("other: {model: {kwargs: {a: b, c, d: 1}}}", "other: {model: {kwargs: {a: 'b, c', d: true}}}"):
        manifest.write_text(text)
        monkeypatch.setattr(added, "entry", lambda *_, line=line: line)
        with pytest.raises(InputError, match="leaves no place"):
            added.add(manifest, trials)
        assert manifest.read_text() == text


def test_results_belong_to_the_bytes_of_a_program(tmp_path: Path) -> None:
    digest = "a" * 64
    Results("net", digest, [Kept("b", "passed", "x", {"value": 1.0, "sqnr": math.inf})]).write(tmp_path)
    Results("net", digest, [Kept("a", "failed", "y")], qualifies=False).write(tmp_path)
    found = kept_results.of_program(tmp_path, "net", digest)
    assert found is not None
    assert [(each.name, each.measured) for each in found.results] == [("a", {}), ("b", {"value": 1.0})]
    assert found.qualifies is False
    assert kept_results.of_program(tmp_path, "net", "b" * 64) is None
    assert kept_results.left_out(tmp_path) == [found]
    (tmp_path / "net.pte").touch()
    assert kept_results.left_out(tmp_path) == []
    (tmp_path / "net.pte").unlink()
    (tmp_path / "other.results.json").write_bytes((tmp_path / "net.results.json").read_bytes())
    assert kept_results.left_out(tmp_path) == [found], "a file has the name of its program"
    content = json.loads((tmp_path / "net.results.json").read_text())
    (tmp_path / "net.results.json").write_text(json.dumps({**content, "results": 3}))
    assert kept_results.of_program(tmp_path, "net", digest) is None
