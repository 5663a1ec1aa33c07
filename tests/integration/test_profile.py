"""`etbuild profile`: the time of each operator, with the line of the model that it comes from."""

from __future__ import annotations

import json
import re
import shutil
import struct
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etbuild import json_schema
from etbuild.cli import main
from etbuild.files.instructions import Instruction
from etbuild.steps.lowering_options import LoweringOptions
from etkit.inspection import etdump
from etkit.inspection import profile as analysis
from etkit.inspection.page import of_file, render
from tests.helpers import browser

from .profiled_net import MANIFEST, MODEL, build_origins


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, patterns_traced_once: None) -> Path:
    """A built program, and beside it what Bazel has beside it."""
    root = tmp_path_factory.mktemp("profile")
    (root / "model.yaml").write_text(MANIFEST)
    (root / "model.py").write_text(MODEL)
    build_origins(root, root / "out", LoweringOptions(jobs=2))
    return root


@pytest.fixture
def profile(capfd: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(*arguments: object) -> dict[str, Any]:
        capfd.readouterr()
        code = main.main(["profile", *map(str, arguments), "--json", "--calls=3"])
        captured = capfd.readouterr()
        assert code == 0, captured.err
        found: dict[str, Any] = json.loads(captured.out)
        assert json_schema.problems("profile", found) == []
        return found

    return run


def by_operator(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["operator"]: each for each in found["instructions"]}


def test_each_operator_has_its_time_layer_and_line(project: Path, profile: Callable[..., dict[str, Any]]) -> None:
    found = profile(project / "out/net.pte", "forward")
    timed = by_operator(found)
    assert timed["XnnpackBackend"]["delegate"]
    assert timed["XnnpackBackend"]["layer"] == "linear" or timed["XnnpackBackend"]["lines"]
    assert "model.py:12, in forward: `y = self.linear(x).relu()`" in timed["XnnpackBackend"]["lines"]
    assert timed["aten::cumsum.out"]["lines"] == ["model.py:13, in forward: `return torch.cumsum(y, 1)`"]
    assert found["calls"] == 3
    assert 0 < found["total"]["min"] <= found["total"]["median"] <= found["total"]["max"]
    parts = [each["time"]["mean"] for each in found["operators"]] + [found["outside"]["mean"]]
    assert sum(parts) == pytest.approx(found["total"]["mean"])
    assert found["operators"][0]["share"] == found["operators"][0]["time"]["median"] / found["total"]["median"]


def test_a_manifest_is_built_and_profiled(
    project: Path, tmp_path: Path, profile: Callable[..., dict[str, Any]]
) -> None:
    found = profile(project / "model.yaml", "scaled", "--cache-dir", tmp_path / "cache")
    assert by_operator(found)["aten::cumsum.out"]["lines"][0].startswith("model.py:")
    assert not list(project.glob("*.pte"))


def test_methods_lowered_one_by_one_have_the_origins_of_a_joint_lowering(project: Path, tmp_path: Path) -> None:
    ours = json.loads((project / "out/net.lowering.json").read_text())["instructions"]
    joint = build_origins(project, tmp_path / "joint", LoweringOptions(accelerate=False, jobs=1))["instructions"]
    assert ours == joint
    assert [sorted(names) for names in ours["forward"]] == [["linear", "relu"], ["cumsum"]]


def test_states_and_branches_are_profiled(project: Path, profile: Callable[..., dict[str, Any]]) -> None:
    count = by_operator(profile(project / "out/net.pte", "count"))
    assert any("model.py:17" in line for line in count["aten::argmax.out"]["lines"])
    branch = by_operator(profile(project / "out/net.pte", "branch"))
    assert "aten::erf.out" in branch
    assert branch["aten::cumsum.out"]["lines"][0].startswith("model.py:20")  # only one line calls it


def test_the_file_of_events_gives_the_same_profile_and_fits_one_method(
    project: Path, tmp_path: Path, profile: Callable[..., dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    dump, program = tmp_path / "events.etdp", project / "out/net.pte"
    ours = profile(program, "forward", "--etdump", dump)
    assert profile(program, "forward", "--from", dump, "--warm-up=2") == ours
    cycles = profile(program, "forward", "--from", dump, "--warm-up=2", "--clock=cycles")
    assert cycles["unit"] == "cycles"
    assert cycles["total"]["mean"] == pytest.approx(1e6 * ours["total"]["mean"])
    for arguments, said in (
        (["scaled", "--from", dump], "has no call of `scaled`: its events do not fit the instructions"),
        (["forward", "--from", program], "not an ETDump"),
        (["forward", "--from", dump, "--warm-up=5"], "all are for warming up"),
        ([], "has several methods"),
        (["forward", "[[1]]", "--from", dump], "takes no inputs"),
        (["forward", "--clock=us"], "--clock goes with --from"),
        (["forward", "[[1]]"], "has the shape [1, 1], and the program takes [2, 8]"),
        (["forward", "--root", project], "is built already"),
    ):
        assert main.main(["profile", str(program), *map(str, arguments)]) == 2
        assert said in capfd.readouterr().err


def test_each_step_of_a_loop_counts(tmp_path: Path, profile: Callable[..., dict[str, Any]]) -> None:
    manifest = re.sub(r"methods:.*", "methods: {loop: {example_inputs: [{shape: [5, 8]}]}}", MANIFEST, flags=re.DOTALL)
    (tmp_path / "model.yaml").write_text(manifest)
    (tmp_path / "model.py").write_text(MODEL)
    found = by_operator(profile(tmp_path / "model.yaml", "--no-cache"))
    assert found["aten::cumsum.out"]["runs"] == 5


def test_the_inspector_of_executorch_measures_the_same(
    project: Path, tmp_path: Path, profile: Callable[..., dict[str, Any]]
) -> None:
    from executorch.devtools import Inspector

    dump = tmp_path / "events.etdp"
    ours = profile(project / "out/net.pte", "count", "--etdump", dump, "--warm-up=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocks = Inspector(etdump_path=str(dump)).event_blocks
    theirs = {
        event._instruction_id: event.perf_data.avg
        for block in blocks
        for event in block.events
        if event.name in ("OPERATOR_CALL", "DELEGATE_CALL") and event.perf_data is not None
    }
    assert theirs == {each["number"]: pytest.approx(each["time"]["mean"]) for each in ours["instructions"]}


def test_kernels_name_the_operator_of_a_call() -> None:
    from etbuild.errors import InputError

    events = [etdump.Event("native_call_sin.out", 0, None, 3), etdump.Event("OPERATOR_CALL", 0, None, 5)]
    blocks = [etdump.Block("Execute", events)]

    def subject(*instructions: Instruction) -> analysis.Subject:
        return analysis.Subject("net.pte", "forward", instructions, analysis.Origins())

    assert analysis.summarize(blocks, subject(Instruction("aten::sin.out", "operator"))).calls == 1
    with pytest.raises(InputError, match="do not fit the instructions"):
        analysis.summarize(blocks, subject(Instruction("aten::cos.out", "operator")))
    with pytest.raises(InputError, match="has no operator and no delegate"):
        analysis.summarize([], subject())


def test_a_damaged_file_of_events_is_refused(tmp_path: Path) -> None:
    from etbuild.errors import InputError

    path = tmp_path / "events.etdp"
    for data in (b"", struct.pack("<II4s", 8, 4, b"ED00"), struct.pack("<II4sI", 12, 1 << 30, b"ED00", 0)):
        path.write_bytes(data)
        with pytest.raises(InputError):
            etdump.read(path)


def test_a_clock_of_32_bits_may_begin_again() -> None:
    assert etdump._between((1 << 32) - 5, 10) == 15
    with pytest.raises(ValueError, match="before it begins"):
        etdump._between(1 << 40, 10)


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    if reason := browser.missing():
        pytest.skip(reason)
    with browser.running() as started:
        yield started


def test_the_page_shows_the_times(
    project: Path, tmp_path: Path, profile: Callable[..., dict[str, Any]], chromium: browser.Browser
) -> None:
    path = tmp_path / "net.html"
    profile(project / "out/net.pte", "forward", "--html", path)
    for scheme in ("light", "dark"):
        with chromium.opened(path, scheme) as opened:
            page = opened.page
            assert opened.told == []
            assert "aten::cumsum.out" in page.locator("#operators").inner_text()
            assert "model.py:13, in forward" in page.locator("#instructions").inner_text()
            page.locator("button.find", has_text="cumsum").focus()
            page.keyboard.press("Enter")
            assert page.locator("#method option:checked").inner_text() == "forward"
            assert page.locator("#results button").count() == 1
            assert opened.serious() == []
            page.emulate_media(media="print")
            assert page.locator("#instructions").is_visible()


def test_the_text_is_a_table(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["profile", str(project / "out/net.pte"), "forward", "--calls=2"]) == 0
    out = capfd.readouterr().out
    assert re.search(
        r"^net\.pte forward: \S+ (?:µs|ms) a call \(the median; \S+ \S+ to \S+ \S+ in 2 calls\)$", out, re.MULTILINE
    )
    assert re.search(r"^delegate XnnpackBackend +1 +\S+ \S+ +\S+%$", out, re.MULTILINE)
    assert textwrap.dedent(out) == out


def test_names_from_a_file_stay_text_on_the_page(project: Path) -> None:
    hostile = "</td><script>alert(1)</script>\x1b"
    blocks = [etdump.Block("Execute", [etdump.Event("DELEGATE_CALL", 0, None, 5), etdump.Event("x", 0, hostile, 3)])]
    subject = analysis.Subject(hostile, hostile, [Instruction(hostile, "delegate")], analysis.Origins())
    found = analysis.summarize(blocks, subject)
    page = render.render(replace(of_file.shown(project / "out/net.pte"), profile=found))
    assert b"<script>alert" not in page
    assert b"alert(1)" in page
    assert "\x1b" not in analysis.text(found)


def test_damaged_facts_beside_a_program_are_an_error(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(project / "out", tmp_path / "out")
    facts = json.loads((out / "net.lowering.json").read_text())
    facts["memory"] = {}
    (out / "net.lowering.json").write_text(json.dumps(facts))
    words = ["profile", str(out / "net.pte"), "forward", "--calls=1", "--html", str(tmp_path / "net.html")]
    assert main.main(words) == 2
    assert "net.lowering.json: the file is damaged" in capfd.readouterr().err
