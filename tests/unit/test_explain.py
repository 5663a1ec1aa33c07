"""`etbuild explain` says why two builds have different keys."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from etbuild.cli import main
from etbuild.files.json_diff import changes
from etbuild.results import Driver, Index, Release
from etkit.building import explanation
from etkit.local.cache.store import Cache
from tests.helpers.snippets import snippets

from .indexes import MANIFEST, edited, make_index, sha256

MLP = Path(__file__).parents[2] / "examples/mlp/model.yaml"
BEFORE = make_index()
EXPORT, LOWER = ["export", "lower, if the exported graphs change", "compare", "report"], ["lower", "report"]


def changed(name: Literal["sources", "data"], **values: str) -> Index:
    """Returns an index in which inputs of one kind differ."""
    inputs: dict[str, Any] = {name: {**BEFORE["inputs"][name], **values}}
    return make_index(**inputs)


def toolchain(driver: Driver | None = None, **distributions: Release) -> Index:
    found = copy.deepcopy(BEFORE["inputs"]["toolchain"])
    found["distributions"].update(distributions)
    return make_index(toolchain={**found, "driver": driver or found["driver"]})


@pytest.mark.parametrize(
    ("path", "value", "words", "steps"),
    [
        (
            ("methods", "decode", "example_inputs", 0, "shape"),
            [1, 32],
            "`decode`: example_inputs[0].shape 1x16 -> 1x32",
            EXPORT,
        ),
        (("model", "seed"), 7, "model.seed 0 -> 7", EXPORT),
        (("methods", "decode", "strict"), True, "`decode`: strict false -> true", EXPORT),
        (
            ("methods", "decode", "partitioners"),
            [],
            "`decode`: partitioners [{backend: xnnpack, options: {}}] -> []",
            LOWER,
        ),
        (("constant_methods", "get_max"), 9, "constant method `get_max` 8 -> 9", LOWER),
        (("constant_methods", "get_min"), 1, "constant method `get_min` added: 1", LOWER),
        (("named_data", "weights", "shard_size"), 64, "named data `weights`: shard_size null -> 64", LOWER),
        (("checks",), {"max_program_bytes": 5}, "checks.max_program_bytes added: 5", ["report"]),
        (("report",), {"blobs": False}, "report.blobs true -> false", ["report"]),
    ],
)  # fmt: skip
def test_a_change_of_the_manifest(path: tuple[Any, ...], value: Any, words: str, steps: list[str]) -> None:
    after = make_index(edited(MANIFEST, *path, value=value))
    assert explanation.differences(BEFORE, after) == [words]
    assert explanation.steps_to_run(BEFORE, after) == steps


def test_new_weights_are_bound_and_lower_only_what_reads_them() -> None:
    before, after = make_index(), make_index(data={"net.safetensors": sha256("another checkpoint")})
    assert explanation.steps_to_run(before, after) == ["bind the new weights", "report"]
    after["with_weights"] = {"decode": "`item` reads the content of `head`"}
    reason = "lower `decode` with its weights, because `item` reads the content of `head`"
    assert explanation.steps_to_run(before, after) == ["bind the new weights", reason, "report"]


def test_indexes_may_name_a_backend_that_is_not_installed() -> None:
    before, after = make_index(), make_index()
    for index, options in ((before, {}), (after, {"operators": ["aten::sin"]})):
        index["inputs"]["plan"]["methods"]["decode"]["partitioners"] = [{"backend": "elsewhere", "options": options}]
    assert explanation.steps_to_run(before, after) == LOWER


def test_an_added_and_a_removed_method_are_listed() -> None:
    after = edited(MANIFEST, "methods", "embed", value={"example_inputs": [{"shape": [1]}]})
    del after["methods"]["prefill"]
    words = explanation.differences(BEFORE, make_index(after))
    assert words == ["method `embed` added", "method `prefill` removed"]


def test_a_package_that_only_a_backend_needs_exports_nothing() -> None:
    after = toolchain(coremltools={"version": "9.0", "sha256": sha256("coremltools")})
    assert explanation.differences(BEFORE, after) == ["coremltools 9.0 added"]
    assert explanation.steps_to_run(BEFORE, after) == LOWER


def test_sources() -> None:
    sources = {"model.py": sha256("edited"), "new.py": sha256("new")}
    after = make_index(sources=sources)
    assert explanation.differences(BEFORE, after) == [
        "source `layers/rope.py` removed",
        "source `model.py` changed",
        "source `new.py` added",
    ]
    assert explanation.steps_to_run(BEFORE, after)[0] == "export"


def test_weights_tensor_by_tensor() -> None:
    after = changed("data", **{"net.safetensors": sha256("edited")})
    tensors = after["tensors"]["net.safetensors"]
    for name in ("layer1.weight", "layer3.weight", "layer5.weight"):
        tensors[name] = sha256(f"other {name}")
    assert explanation.differences(BEFORE, after) == [
        "weights `net.safetensors`: 3 of 48 tensors changed",
        "    layer1.weight changed",
        "    layer3.weight changed",
        "    layer5.weight changed",
    ]
    assert explanation.steps_to_run(BEFORE, after) == ["bind the new weights", "report"]


def test_tensors_that_came_and_went_and_too_many_to_name() -> None:
    after = changed("data", **{"net.safetensors": sha256("edited")})
    tensors = after["tensors"]["net.safetensors"]
    del tensors["layer47.weight"]
    tensors.update({f"more{number}": sha256("x") for number in range(10)})
    words = explanation.differences(BEFORE, after)
    assert words[0] == "weights `net.safetensors`: 10 added, 1 removed"
    assert words[-1] == "    and 3 more"


def test_the_page_shows_lines_that_are_printed() -> None:
    shape = make_index(edited(MANIFEST, "methods", "decode", "example_inputs", 0, "shape", value=[1, 32]))
    weights = changed("data", **{"net.safetensors": sha256("edited")})
    for name in ("layer1.weight", "layer3.weight", "layer5.weight"):
        weights["tensors"]["net.safetensors"][name] = sha256(f"other {name}")
    driver = toolchain({"version": "0.3.0", "sha256": sha256("driver 3"), "steps": {}})
    [shown] = [each.text for each in snippets() if each.page == "docs/incremental.md" and "3 of 48" in each.text]
    assert shown.splitlines() == [explanation.differences(BEFORE, after)[0] for after in (shape, weights, driver)]


def test_another_file_with_the_same_tensors() -> None:
    after = changed("data", **{"net.safetensors": sha256("repacked")})
    assert explanation.differences(BEFORE, after) == ["weights `net.safetensors`: the same tensors in another file"]


def test_the_toolchain() -> None:
    after = toolchain(
        {"version": "0.3.0", "sha256": sha256("driver 3"), "steps": {"lower": sha256("lower 3")}},
        torch={"version": "2.14.0", "sha256": sha256("torch 14")},
        executorch={"version": "1.5.1", "sha256": sha256("patched")},
        timm={"version": "1.0", "sha256": sha256("timm")},
    )
    assert explanation.differences(BEFORE, after) == [
        "driver 0.2.0 -> 0.3.0",
        "executorch 1.5.1: other files in the same version",
        "timm 1.0 added",
        "torch 2.13.0+cpu -> 2.14.0",
    ]
    assert explanation.steps_to_run(BEFORE, after) == ["export", "lower", "report"]


def test_files_of_the_driver_count_for_the_steps_that_run_them() -> None:
    for step, steps in (("export", EXPORT), ("lower", LOWER), ("report", ["report"])):
        of_steps = {"lower": sha256("lower"), step: sha256("edited")}
        after = toolchain({"version": "0.2.0", "sha256": sha256(step), "steps": of_steps})
        assert explanation.differences(BEFORE, after) == ["driver 0.2.0: other files in the same version"]
        assert explanation.steps_to_run(BEFORE, after) == steps


def run(capsys: pytest.CaptureFixture[str], *arguments: object, expect: int = 0) -> str:
    assert main.main(["explain", *map(str, arguments)]) == expect
    printed = capsys.readouterr()
    return printed.err if expect else printed.out


def write(directory: Path, index: Index, name: str = "net") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.index.json"
    path.write_text(json.dumps(index))
    return path


def test_a_build_is_named_by_its_index_directory_or_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write(tmp_path / "one", BEFORE), write(tmp_path / "two", changed("sources", **{"model.py": sha256("x")}))
    (two.parent / "net.pte").write_bytes(b"pte")  # as the index lists it
    texts = {run(capsys, *names) for names in [(one, two), (one.parent, two.parent), (one, two.parent / "net.pte")]}
    (text,) = texts
    assert text.splitlines()[1:] == [
        "source `model.py` changed",
        "to run again: export; lower, if the exported graphs change; compare; report",
    ]
    (two.parent / "net.pte").write_bytes(b"others")
    assert "has other content than net.index.json says" in run(capsys, one, two.parent / "net.pte", expect=2)
    assert run(capsys, one, one.parent) == f"the same key: {BEFORE['key']}\n"
    said = json.loads(run(capsys, one, two, "--json"))
    assert said["differences"] == ["source `model.py` changed"]


def test_a_key_names_a_program_in_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "made", BEFORE)
    Cache(tmp_path / "cache").store("program", BEFORE["key"], tmp_path / "made", ["net.index.json"])
    where = ["--cache-dir", tmp_path / "cache"]
    assert "the same key" in run(capsys, BEFORE["key"], tmp_path / "made", *where)
    assert "has no program with this key" in run(capsys, "0" * 64, *where, expect=2)


def test_the_tree_of_a_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    printed = json.loads(run(capsys, MLP, "--json"))
    lines = [line.split() for line in run(capsys, MLP).splitlines()]
    assert ["key", printed["key"], "mlp"] in lines
    assert ["model.py", printed["inputs"]["sources"]["model.py"]] in lines
    assert run(capsys, MLP, MLP) == f"the same key: {printed['key']}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file or directory"),
        ("{", "not an index"),
        ("[]", "it has no `schema`, which must be executorch-index/v2"),
        ('{"schema": "executorch-index/v1"}', "create it again with this version of `etbuild`"),
        ('{"schema": "executorch-index/v2"}', "the key `name` is missing"),
    ],
)
def test_files_that_are_not_indexes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "x.index.json"
    if content is not None:
        path.write_text(content)
    assert message in run(capsys, path, expect=2)


def test_a_directory_has_to_hold_one_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "it has no *.index.json" in run(capsys, tmp_path, expect=2)
    for name in ("a", "b"):
        write(tmp_path, BEFORE, name)
    assert "found: a.index.json, b.index.json" in run(capsys, tmp_path, expect=2)
    assert "its index net.index.json is not in the same directory" in run(capsys, tmp_path / "net.pte", expect=2)


def test_equal_numbers_of_different_types_differ() -> None:
    for before, after in (([1, 2], [1.0, 2.0]), ([1, 2], [True, 2]), (1, True), ({"a": [0]}, {"a": [False]})):
        assert [change.before for change in changes(before, after)]
    assert not list(changes([1, 2.0, True], [1, 2.0, True]))
