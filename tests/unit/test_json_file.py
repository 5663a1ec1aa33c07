"""Untrusted JSON files are read with limits and checked before use. A read never waits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from etbuild import json_schema
from etbuild.cli import main
from etbuild.errors import InputError
from etbuild.files import digests, json_file, regular_files
from etbuild.manifest import validate
from etbuild.plan.plan import from_manifest
from etbuild.plan.step_plans import read_plan
from etkit import find_index
from tests.conftest import MANIFESTS, variant

from .indexes import MANIFEST, edited, make_index

BAD = {
    "nothing": b"",
    "half": b'{"schema": "executorch-index/v2", ',
    "not UTF-8": b'{"schema": "\xff"}',
    "UTF-16": '{"schema": 1}'.encode("utf-16"),
    "a key twice": b'{"schema": 1, "schema": 2}',
    "NaN": b'{"schema": NaN}',
    "infinity": b'{"schema": -Infinity}',
    "a number that is infinite": b'{"schema": 1e999}',
    "a number of 4,000 digits": b'{"schema": ' + b"1" * 4000 + b"}",
    "a number of 5,000 digits": b'{"schema": ' + b"1" * 5000 + b"}",
    "a number of 65 bits": b'{"schema": 18446744073709551616}',
    "half a surrogate pair": b'{"schema": "\\ud800"}',
    "half a surrogate pair in a key": b'{"\\udc00": 1}',
    "101 lists": b"[" * 101 + b"]" * 101,
    "100,000 lists": b"[" * 100_000,
    "100,000 objects": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_invalid_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        json_file.parse(data)


@pytest.mark.parametrize("verb", ["explain", "lock", "diff"])
@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_every_verb_names_the_error_in_an_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, data: bytes
) -> None:
    path = tmp_path / "net.index.json"
    path.write_bytes(data)
    others = {"lock": [str(tmp_path / "net.lock.json")], "diff": [str(path)], "explain": []}
    assert main.main([verb, str(path), *others[verb]]) == 2
    assert f"{path}: not an index: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["lock INDEX net.lock.json", "diff INDEX INDEX", "cpp INDEX", "verify INDEX", "sbom INDEX"]
)
def test_a_manifest_is_not_taken_for_an_index(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text("schema: executorch-model/v1\n")
    assert main.main(words.replace("INDEX", "net.yaml").split()) == 2
    said = "error: net.yaml: a manifest, not an index\n    build it, and name its index or the directory\n"
    assert capsys.readouterr().err == said


def test_values_within_the_limits_are_read() -> None:
    deepest = b"[" * 100 + b"]" * 100
    for data in (b"1", b"-9223372036854775808", b"18446744073709551615", b'"\\ud83d\\ude00"', deepest):
        assert json_file.parse(data) == json.loads(data)


def test_numbers_that_are_not_finite_can_be_taken() -> None:
    """transformers writes such numbers to configurations."""
    assert json_file.parse(b"[0.0, Infinity]", {"Infinity": float("inf")}) == [0.0, float("inf")]
    with pytest.raises(ValueError, match="NaN is not a number of JSON"):
        json_file.parse(b"[NaN]", {"Infinity": float("inf")})


def test_a_name_that_is_too_long_is_not_taken_for_a_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["explain", "n" * 5000]) == 2
    assert len(capsys.readouterr().err) < 300


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("inputs", "plan", "methods", "decode"), {}),
        (("inputs", "plan", "methods", "decode", "partitioners"), [{"backend": "custom", "options": {}}]),
        (("inputs", "plan", "methods", "decode", "example_inputs"), [{"list": [1]}]),
        (("inputs", "plan", "methods", "decode", "quantize"), {"torchao": None, "pt2e": None}),
        (("inputs", "plan", "model"), {}),
        (("inputs", "plan", "recipe"), {"name": 1}),
        (("inputs", "plan", "passes"), {"edge": [1]}),
        (("inputs", "plan", "named_data"), {"../up": {"parameters": [], "shard_size": None}}),
        (("inputs", "plan", "named_data", "weights"), {"parameters": "*"}),
        (("artifacts", 0, "file"), "../net.pte"),
        (("artifacts", 0, "file"), "/dev/zero"),
        (("artifacts", 0, "file"), "a/../../b"),
        (("artifacts", 0, "file"), ".."),
        (("artifacts", 0, "file"), "net.pte\0"),
        (("artifacts", 0, "size"), -1),
        (("tensors",), {"net.safetensors": {"a": 1}}),
        (("key",), "x"),
    ],
)
def test_an_index_fits_its_schema_in_depth(tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    target = tmp_path / "net.index.json"
    target.write_text(json.dumps(edited(make_index(), *path, value=value)))
    with pytest.raises(InputError, match="not an index: ") as error:
        find_index.read_index(target)
    assert len(error.value.problems) <= 3


RICH: Any = {
    **MANIFEST,
    "recipe": {"name": "xnnpack_fp32", "kwargs": {"a": 1}},
    "defaults": {},
    "methods": {
        "whole": {"program": "whole.pt2", "partitioners": ["xnnpack"]},
        "custom": {
            "example_inputs": [
                {"list": [{"shape": [2]}, {"dict": {"a": {"file": "a.pt", "key": "x"}}}]},
                {"value": None},
            ],
            "example_kwargs": {"b": {"factory": "inputs:b"}},
            "dynamic_shapes": [[[{"dim": "n", "max": 4}], None], None],
            "partitioners": [{"backend": "custom", "options": {"factory": "parts:create"}}],
            "quantize": {
                "torchao": [{"config": "8da4w"}, {"config": "code:config", "kwargs": {"a": 1}}],
                "pt2e": {"quantizers": ["xnnpack"], "calibration": {"factory": "data:batches"}},
            },
            "memory_planning": {"memory_planning_algo": "code:plan"},
        },
        "left": {
            "example_inputs": [{"shape": []}],
            "quantize": {"pt2e": {"quantizers": ["xnnpack"], "qat": "code:train"}},
        },
    },
    "named_data": {"big": {"parameters": ["*"], "shard_size": 100}},
    "constant_methods": {"a": 1, "b": "text", "c": [1.5, True], "d": {"factory": "code:d"}},
    "passes": {"aten": ["code:aten"], "edge": ["code:edge"]},
}


@pytest.mark.parametrize("name", ["rich", *MANIFESTS])
def test_plans_that_are_written_can_be_read(tmp_path: Path, name: str) -> None:
    whole = from_manifest(RICH if name == "rich" else validate.load(MANIFESTS[name], variant=variant(name)).data)
    methods = [whole.lower_plan.of_method(method) for method in whole.methods]
    path = tmp_path / "plan.json"
    for part in (whole, whole.export_plan, whole.lower_plan, *methods):
        path.write_bytes(digests.canonical_json(part.to_json()))
        assert read_plan(path, type(part)) == part


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from objects(part, (*path, key))


# Objects of a plan whose keys are names of the user's, so that any key is read.
BY_NAME = {"constant_methods", "dynamic_kwargs_shapes", "kwargs", "options"}


def test_a_plan_with_a_key_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    whole = from_manifest(RICH)
    methods = [whole.lower_plan.of_method(method) for method in whole.methods]
    path = tmp_path / "plan.json"
    taken = set()
    for part in (whole, whole.export_plan, whole.lower_plan, *methods):
        for place in objects(part.to_json()):
            path.write_bytes(digests.canonical_json(edited(part.to_json(), *place, "odd_key", value={})))
            with suppress(InputError):
                read_plan(path, type(part))
                taken.add(place[-1])
    assert taken == BY_NAME


def test_every_object_of_our_schemas_is_closed_or_says_why() -> None:
    others = {  # files of other tools, which may hold anything else
        "checkpoint-index": "transformers",
        "package": "the OCI specification allows other keys",
        "plan": "`Part.from_json` refuses other keys",
    }
    folder = Path(json_schema.__file__).parent / "schemas"
    for file in sorted(folder.glob("*.schema.json")):
        if file.name.partition(".")[0] in others:
            continue
        for place in objects(json.loads(file.read_text())):
            one = json.loads(file.read_text())
            for key in place:
                one = one[key]
            parts = {"if", "then", "not", "examples", "default", "const"} & set(place)  # of an object that is closed
            in_plan = file.name == "index.schema.json" and "plan" in place  # `plan.schema.json` checks it again
            if "properties" in one and place[-1:] != ("properties",) and not parts and not in_plan:
                closed = {"additionalProperties", "unevaluatedProperties", "$comment"} & one.keys()
                assert closed, f"{file.name}: {place}"


def test_pipes_and_devices_do_not_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    for path in (pipe, link, tmp_path, Path("/dev/zero"), tmp_path / "none", tmp_path / ("n" * 5000), Path("a\0b")):
        with pytest.raises(OSError, match=r".+"):
            regular_files.read(path, 10)
        with pytest.raises(InputError, match="not a lockfile"):
            json_file.read(path, json_file.Format("a lockfile", "lock"))


def test_only_the_allowed_size_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="not a lockfile: larger than"):
        json_file.read(path, json_file.Format("a lockfile", "lock"))


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "b/../../a", "/etc/passwd", "a\0", "out", "way/a", "none"])
def test_names_do_not_leave_the_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_text("outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "out").symlink_to(tmp_path / "a")
    (inside / "way").symlink_to(tmp_path)
    (inside / "index").write_text("{}")
    found = regular_files.beside(inside / "index", name)
    assert found is None or found == inside


def test_a_link_to_a_file_leads_to_what_is_beside_that(tmp_path: Path) -> None:
    """Build systems make links to outputs."""
    real, shown = tmp_path / "real", tmp_path / "shown"
    for directory in (real, shown):
        directory.mkdir()
    for name in ("index", "report"):
        (real / name).write_text(name)
        (shown / name).symlink_to(real / name)
    assert regular_files.beside(shown / "index", "report") == real / "report"


def test_a_report_elsewhere_is_not_read(tmp_path: Path) -> None:
    """Neither a report behind a link nor a device is read."""
    index = make_index()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "net.report.json").symlink_to("/dev/zero")
    (inside / "net.index.json").write_text(json.dumps(index))
    assert main.main(["diff", str(inside), str(inside)]) == 0


def test_a_file_with_many_errors_takes_no_longer_than_its_first_errors(tmp_path: Path) -> None:
    """Work is counted in function calls, which do not depend on the load of the machine."""

    def calls(entries: int) -> int:
        count = 0

        def counted(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        index = {"schema": "executorch-index/v2", "artifacts": [{} for _ in range(entries)]}
        sys.setprofile(counted)
        try:
            with pytest.raises(InputError):
                json_file.check(index, tmp_path / "net.index.json", json_file.Format("an index", "index"))
        finally:
            sys.setprofile(None)
        return count

    calls(1)  # a first call, which compiles patterns
    assert calls(5000) < 2 * calls(10)
