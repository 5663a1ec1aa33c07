"""Programs with test vectors for devices, and ETRecords."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etbuild.files import flatbuffer
from etbuild.steps.lowering_options import LoweringOptions

from .profiled_net import MANIFEST, MODEL, build_origins

TESTS = """
tests:
  random: 1
  cases:
    two: {calls: [{method: forward, inputs: [{shape: [2, 8], fill: ones}]}, {method: count, inputs: [{shape: [2, 8]}]}]}
    one: {method: scaled, inputs: [{shape: [2, 8], fill: ones}, {value: 3}]}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, patterns_traced_once: None) -> Path:
    root = tmp_path_factory.mktemp("bundle")
    (root / "model.yaml").write_text(MANIFEST + TESTS)
    (root / "model.py").write_text(MODEL)
    build_origins(root, root / "out", LoweringOptions(jobs=2))
    return root


def bundle(project: Path, output: Path, *arguments: object) -> int:
    program = project / "out/net.pte"
    words = ["bundle", project / "model.yaml", "--program", program, "-o", output, *arguments]
    return main.main([*map(str, words)])


def test_a_bundle_has_a_vector_for_each_test_with_one_call(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.bpte"
    assert bundle(project, path) == 0
    captured = capfd.readouterr()
    for name in ("forward/example", "forward/random-1", "count/example", "cases/one"):
        assert f" {name} " in captured.out
    assert "`cases/two` cannot be a test vector: a vector is one call" in captured.err
    assert "`scaled/example`: a bundle holds only tensors as outputs, so the vector has only inputs" in captured.err
    data = path.read_bytes()
    assert data[4:8] == b"BP08"
    assert (project / "out/net.pte").read_bytes() in data
    suites = {flatbuffer.text(each, 0): each for each in flatbuffer.tables(flatbuffer.root(data), 1)}
    assert sorted(suites) == ["branch", "count", "forward", "scaled"]
    assert len([*flatbuffer.tables(suites["scaled"], 1)]) == 3


def test_a_wrong_program_gets_no_bundle(project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = project / "model.py"
    model.write_text(MODEL.replace("torch.cumsum(y, 1)", "torch.cumsum(y, 1) + 0.5"))
    try:
        assert bundle(project, tmp_path / "net.bpte", "--filter=forward/*") == 1
    finally:
        model.write_text(MODEL)
    err = capfd.readouterr().err
    assert "the runtime does not compute the outputs of `forward/example`" in err
    assert not (tmp_path / "net.bpte").exists()


def test_a_filter_without_a_test_is_an_error(project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bundle(project, tmp_path / "net.bpte", "--filter=nothing/*") == 2
    assert "no test has the name `nothing/*`" in capfd.readouterr().err


def in_new_process(directory: Path, seed: int, *arguments: object) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-m", "etbuild", *map(str, arguments)]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """ETRecords and a bundle made twice: in other directories, with other hash seeds and numbers of jobs."""
    made = []
    manifest = MANIFEST.replace("  branch: {example_inputs: [{shape: [2, 8]}]}\n", "") + TESTS
    for seed, jobs in ((1, 1), (2, 2)):
        root = tmp_path_factory.mktemp(f"records{'x' * seed}")
        (root / "model.yaml").write_text(manifest)
        (root / "model.py").write_text(MODEL)
        build = ("build", "model.yaml", "-o", "out", "--no-cache", "--etrecord", "--jobs", jobs)
        in_new_process(root, seed, *build)
        in_new_process(root, seed, "bundle", "model.yaml", "--program", "out/net.pte", "-o", "out/net.bpte")
        made.append(root)
    return made


def test_etrecords_and_bundles_have_the_same_bytes_each_time(records: list[Path]) -> None:
    first, second = (
        {path.name: path.read_bytes() for path in (root / "out").rglob("*.*") if path.is_file()} for root in records
    )
    assert {"forward.etrecord", "count.etrecord", "scaled.etrecord", "net.bpte"} <= first.keys()
    assert first == second


def test_the_inspector_names_operators_and_lines(records: list[Path], tmp_path: Path) -> None:
    from executorch.devtools import Inspector

    for method, operator, line in (("forward", "cumsum", 13), ("count", "argmax", 17)):
        out, dump = records[0] / "out", tmp_path / f"{method}.etdp"
        assert main.main(["profile", str(out / "net.pte"), method, "--calls=1", "--etdump", str(dump)]) == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inspector = Inspector(etdump_path=str(dump), etrecord=str(out / f"net.etrecord/{method}.etrecord"))
        events = [event for block in inspector.event_blocks for event in block.events]
        [named] = [e for e in events if e.name == "OPERATOR_CALL" and any(operator in op for op in e.op_types)]
        [trace] = named.stack_traces.values()
        assert f'File "model.py", line {line}, in {method}' in str(trace)
        delegates: list[Any] = [event for event in events if event.name == "DELEGATE_CALL"]
        assert delegates[0].delegate_backend_name == "XnnpackBackend"
        assert any("linear" in op for op in delegates[0].op_types)


def test_etrecords_hold_no_paths(records: list[Path]) -> None:
    for path in (records[0] / "out/net.etrecord").iterdir():
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                assert str(records[0]).encode() not in archive.read(name)
                assert b"site-packages" not in archive.read(name)


def test_a_graph_that_executorch_cannot_save_is_named(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, path: object) -> None:
        raise KeyError("a node")

    monkeypatch.setattr("executorch.devtools.etrecord.ETRecord.save", fail)
    words = ["build", project / "model.yaml", "-o", tmp_path, "--no-cache", "--etrecord"]
    assert main.main([*map(str, words)]) == 1
    err = capfd.readouterr().err
    assert "model.yaml:7:3: methods.branch: ExecuTorch cannot save the graph of this method" in err
    assert not list(tmp_path.iterdir())


def test_a_later_build_leaves_no_file_of_an_earlier_one(tmp_path: Path) -> None:
    def built(methods: str, tag: str, *arguments: str) -> list[str]:
        (tmp_path / "model.yaml").write_text(
            f"schema: executorch-model/v1\nname: net\nmodel: {{factory: 'model:create'}}\nmethods: {{{methods}}}\n"
            f"named_data: {{{tag}: {{parameters: ['linear.*']}}}}\n"
        )
        out = tmp_path / "out"
        words = ["build", str(tmp_path / "model.yaml"), "-o", str(out), "--no-cache", *arguments]
        assert main.main(words) == 0
        return sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())

    (tmp_path / "model.py").write_text(MODEL)
    forward, count = (f"{name}: {{example_inputs: [{{shape: [2, 8]}}]}}" for name in ("forward", "count"))
    first = built(f"{forward}, {count}", "old", "--etrecord")
    assert {"net.old.ptd", "net.etrecord/count.etrecord"} <= {*first}
    second = built(forward, "new", "--etrecord", "--html")
    always = ["net.index.json", "net.new.ptd", "net.pte", "net.report.html", "net.report.json"]
    assert second == ["net.etrecord/forward.etrecord", *always]
