"""Exit codes: the reference lists what they mean for each verb, and each of these cases happens."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etbuild.cli import main
from etkit.local.cache.store import Cache
from etkit.registry.oci import attempts
from tests.fuzz.seeds import DIRECTORY
from tests.helpers.builds import make_report, write_build
from tests.helpers.http_server import Server
from tools.reference import command_line

NO_REGISTRY = "127.0.0.1:1/models/net:v1"
WITH_TORCH = {("bench", 3), ("build", 3), ("generate", 3), ("plan", 3), ("test", 3)}
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


def kernels(directory: Path) -> list[object]:
    (directory / "kernels.yaml").write_text("operators: {}\n")
    return ["selected-ops", DIRECTORY / "pte-net", "--kernels", directory / "kernels.yaml"]


def missing(directory: Path) -> list[object]:
    (directory / "selection.yaml").write_text("operators: {my::op: {}}\n")
    return ["kernels", directory / "selection.yaml"]


def no_cache(directory: Path) -> list[object]:
    (directory / "file").touch()
    return ["doctor", "--cache-dir", directory / "file"]


def targets(directory: Path) -> list[object]:
    (directory / "WORKSPACE").touch()
    text = "schema: executorch-model/v1\nname: net\nmodel: {factory: net:create}\n"
    (directory / "net.yaml").write_text(f"{text}methods: {{forward: {{example_inputs: [{{shape: [1]}}]}}}}\n")
    return ["targets", "--check", directory]


SERVERS: list[Server] = []  # of cases that need one


def unsigned(directory: Path) -> list[object]:
    SERVERS.append(Server(lambda method, path, login: (200, {}, b"{}")))
    return ["pull", f"127.0.0.1:{SERVERS[-1].port}/models/net:v1", "-o", directory / "out", "--signed", "false"]


@pytest.fixture(autouse=True)
def _servers() -> Iterator[None]:
    yield
    while SERVERS:
        SERVERS.pop().end()


CASES: dict[tuple[str, int], Case] = {
    ("targets", 1): targets,
    ("diff", 1): diff,
    ("lock", 3): lock,
    ("cache", 1): cache,
    ("push", 1): push,
    ("pull", 1): lambda directory: ["pull", NO_REGISTRY, "-o", directory / "out"],
    ("pull", 3): unsigned,
    ("verify", 1): damaged,
    ("verify", 3): forbidden,
    ("apply", 1): apply,
    ("doctor", 1): no_cache,
    ("kernels", 3): missing,
    ("selected-ops", 3): kernels,
    ("history", 1): lambda directory: ["history", NO_REGISTRY.rpartition(":")[0]],
}


def test_each_code_of_a_verb_has_a_case() -> None:
    listed = {(verb, code) for verb, codes in command_line.OWN_EXIT_CODES.items() for code in codes}
    assert listed == CASES.keys() | WITH_TORCH
    assert {code for _, code in listed} <= main.EXIT_CODES.keys()


@pytest.mark.parametrize(("verb", "code"), CASES, ids=str)
def test_a_verb_ends_with_its_code(
    verb: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attempts, "BACKOFF_SECONDS", 0.001)
    arguments = [str(argument) for argument in CASES[verb, code](tmp_path)]
    assert arguments[0] == verb
    assert main.main(arguments) == code
    assert "Traceback" not in capsys.readouterr().err


def test_wrong_usage_has_one_code_for_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    [verbs] = [action for action in main.command_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    for verb in verbs.choices:
        try:
            code: object = main.main([verb, "--no-such-option"])
        except SystemExit as end:  # the parser asks for what is missing first
            code = end.code
        assert code == 2, verb


JSON = [
    ["package", "{net}", "-o", "{out}"],
    ["verify", "{net}"],
    ["delta", "{net}", "{net}"],
    ["apply", "{delta}", "{build}"],
    ["ci-summary", "{net}"],
    ["sbom", "{net}"],
    ["selected-ops", str(DIRECTORY / "pte-net")],
    ["diff", "{net}", "{net}"],
    ["explain", "{net}"],
    ["cache", "info"],
]
JSON_ELSEWHERE = {
    "affected": "unit/test_affected.py",
    "bench": "integration/test_bench.py",
    "build": "integration/test_local_cache.py",
    "doctor": "unit/test_doctor.py",
    "history": "registry/test_history.py",
    "inspect": "integration/test_inspect.py",
    "profile": "integration/test_profile.py",
    "pull": "registry/test_registry.py",
    "push": "registry/test_registry.py",
    "run": "integration/test_program_tests.py",
    "sizes": "unit/test_sizes.py",
    "test": "integration/test_program_tests.py",
    "tune": "integration/test_tune.py",
    "validate": "unit/test_cli.py",
}


def test_each_verb_with_json_has_a_test() -> None:
    [verbs] = [action for action in main.command_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    with_json = {verb for verb, parser in verbs.choices.items() if "--json" in parser.format_usage()}
    assert with_json | {"cache"} == {case[0] for case in JSON} | JSON_ELSEWHERE.keys()
    for verb, file in JSON_ELSEWHERE.items():
        text = (Path(__file__).parents[1] / file).read_text()
        assert '"--json"' in text, verb
        assert verb in text, verb


@pytest.mark.parametrize("arguments", JSON, ids=lambda arguments: str(arguments[0]))
def test_json_is_all_that_is_printed(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = write_build(tmp_path / "build", "net", report=REPORT)
    places = {"net": net, "build": net.parent, "out": tmp_path / "out", "delta": tmp_path / "delta"}
    main.main(["delta", str(net), str(net), "-o", str(places["delta"])])
    capsys.readouterr()
    assert main.main([*(argument.format(**places) for argument in arguments), "--json"]) == 0
    json.loads(capsys.readouterr().out)
