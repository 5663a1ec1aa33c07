"""Exit codes: the reference lists what they mean for each verb, and each of these cases happens."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from etbuild.cache.store import Cache
from etbuild.cli import main
from tests.helpers.builds import make_report, write_build

NO_REGISTRY = "127.0.0.1:1/models/net:v1"
WITH_TORCH = {("build", 3), ("generate", 3), ("test", 3)}
"""Cases that need PyTorch: tests/integration has them."""

REPORT = make_report(1, 1, 1)

Case = Callable[[Path], list[object]]


def diff(directory: Path) -> list[object]:
    indexes = [write_build(directory / name, "net", pte=name.encode(), report=REPORT) for name in ("a", "b")]
    return ["diff", *indexes, "--exit-code"]


def lock(directory: Path) -> list[object]:
    return ["lock", write_build(directory, "net"), directory / "net.lock.json"]


def cache(directory: Path) -> list[object]:
    (directory / "file").write_bytes(b"content")
    Cache(directory / "cache").store("lower", "0" * 64, directory, ["file"])
    [blob] = (directory / "cache/blobs").rglob("*/*")
    blob.write_bytes(b"damage!")
    return ["cache", "verify", "--cache-dir", directory / "cache"]


def push(directory: Path) -> list[object]:
    main.main(["package", str(write_build(directory, "net")), "-o", str(directory / "layout")])
    return ["push", directory / "layout", NO_REGISTRY]


def damaged(directory: Path) -> list[object]:
    write_build(directory, "net")
    (directory / "net.pte").write_bytes(b"damage!")
    return ["verify", directory]


def forbidden(directory: Path) -> list[object]:
    (directory / "policy.yaml").write_text("schema: executorch-policy/v1\nbuilders: [nobody]\n")
    return ["verify", write_build(directory, "net"), "--policy", directory / "policy.yaml"]


def apply(directory: Path) -> list[object]:
    before, after = (write_build(directory / name, "net", pte=name.encode()) for name in ("a", "b"))
    main.main(["delta", str(before), str(after), "-o", str(directory / "delta"), "--no-patches"])
    for blob in (directory / "delta/blobs/sha256").iterdir():
        blob.write_bytes(b"damage!")
    return ["apply", directory / "delta", directory / "a"]


CASES: dict[tuple[str, int], Case] = {
    ("diff", 1): diff,
    ("lock", 3): lock,
    ("cache", 1): cache,
    ("push", 1): push,
    ("pull", 1): lambda directory: ["pull", NO_REGISTRY, "-o", directory / "out"],
    ("verify", 1): damaged,
    ("verify", 3): forbidden,
    ("apply", 1): apply,
    ("history", 1): lambda directory: ["history", NO_REGISTRY.rpartition(":")[0]],
}


def test_each_code_of_a_verb_has_a_case() -> None:
    listed = {(verb, code) for verb, codes in main.OWN_EXIT_CODES.items() for code in codes}
    assert listed == CASES.keys() | WITH_TORCH
    assert {code for _, code in listed} <= main.EXIT_CODES.keys()


@pytest.mark.parametrize(("verb", "code"), CASES, ids=str)
def test_a_verb_ends_with_its_code(
    verb: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = pytest.importorskip("etbuild.oci.registry")
    monkeypatch.setattr(registry, "BACKOFF_SECONDS", 0.001)
    arguments = [str(argument) for argument in CASES[verb, code](tmp_path)]
    assert arguments[0] == verb
    assert main.main(arguments) == code
    assert "Traceback" not in capsys.readouterr().err


def test_wrong_usage_has_one_code_for_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    [verbs] = [action for action in main.whole_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    for verb in verbs.choices:
        with pytest.raises(SystemExit) as end:
            main.main([verb, "--no-such-option"])
        assert end.value.code == 2, verb


@pytest.mark.parametrize(
    "arguments",
    [
        ["package", "{net}", "-o", "{out}"],
        ["verify", "{net}"],
        ["delta", "{net}", "{net}"],
        ["ci-summary", "{net}"],
        ["diff", "{net}", "{net}"],
        ["explain", "{net}"],
        ["cache", "info"],
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_json_is_all_that_is_printed(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"net": write_build(tmp_path / "build", "net", report=REPORT), "out": tmp_path / "out"}
    assert main.main([*(argument.format(**places) for argument in arguments), "--json"]) == 0
    json.loads(capsys.readouterr().out)
