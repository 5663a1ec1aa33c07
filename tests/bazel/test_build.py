"""`bazel build` builds the examples, runs only what changed again, and gives the same in a second checkout."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MANIFESTS
from tests.helpers import commands
from tests.helpers.workspaces import REPOSITORY, WORKERS, Result, Workspace

PROGRAMS = {
    "encoder_decoder/encoder_decoder": ["encoder", "decoder"],
    "huggingface/bert": [],
    "huggingface/llama": ["weights"],
    "microcontroller/spotter": [],
    "mlp/mlp": [],
    "quantized/spotter_int4": ["weights"],
    "quantized/spotter_int8": ["weights"],
    "samples/shapes": [],
    "shared_weights/classifier": ["backbone"],
    "shared_weights/embedder": ["backbone"],
    "sound/denoiser": [],
    "tiny_lm/tiny_lm": ["weights"],
    "vision/vision": [],
    "vision/vision.coreml": [],
    "vision/vision.ethos_u": [],
    "vision/vision.openvino": [],
}

SHARING = {"vision/vision.coreml", "vision/vision.openvino"}
"""The programs that use the exported methods of another one."""


GOLDEN = Path(__file__).parents[1] / "golden/programs"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(directory: Path) -> set[str]:
    """Returns the digests in a disk cache: those of actions are in `ac`, those of contents in `cas`."""
    return {path.name for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def as_made_before(checkout: Workspace, built: Result, disk_cache: Path) -> None:
    """The examples again, after tests that edited the outputs."""
    checkout.build("//examples/...", f"--disk_cache={disk_cache}")


def test_every_example_is_built(checkout: Workspace, built: Result) -> None:
    # What `built` ran does not tell: a test before it may have built some of them.
    listed = checkout.run("aquery", 'mnemonic("Executorch.*", //examples/...)').out
    actions = re.findall(r"^  Mnemonic: (\w+)$", listed, re.MULTILINE)
    for step in ("Plan", "Report"):
        assert actions.count(f"Executorch{step}") == len(PROGRAMS)
    assert actions.count("ExecutorchExport") == len(PROGRAMS) - len(SHARING)
    assert actions.count("ExecutorchLower") == 2 * len(PROGRAMS) + 7  # seven of them list two methods
    for program, tags in PROGRAMS.items():
        path = checkout.output(f"examples/{program}")
        index = json.loads(path.with_name(f"{path.name}.index.json").read_text())
        made = {artifact["file"]: artifact["sha256"] for artifact in index["artifacts"]}
        wanted = {f"{path.name}.pte", f"{path.name}.report.json", *(f"{path.name}.{tag}.ptd" for tag in tags)}
        assert wanted - {f"{path.name}.report.json"} <= set(made) <= wanted
        assert made == {name: sha256(path.with_name(name)) for name in made}


@pytest.mark.always
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_example_has_the_bytes_that_were_written_down(checkout: Workspace, built: Result, program: str) -> None:
    """`tests/integration/test_determinism.py` writes the files and compares them with what the command line builds."""
    path = checkout.output(f"examples/{program}")
    golden = json.loads((GOLDEN / f"{path.name}.json").read_text("utf-8"))
    assert golden == {file: sha256(path.with_name(file)) for file in golden}
    assert len(golden) == 1 + len(PROGRAMS[program])


def test_nothing_made_holds_a_path_of_the_checkout(checkout: Workspace, built: Result) -> None:
    for program in PROGRAMS:
        path = checkout.output(f"examples/{program}")
        made = [file for top in path.parent.glob(f"{path.name}.*") for file in (top, *top.rglob("*")) if file.is_file()]
        assert any(file.suffix == ".pt2" for file in made) == (program not in SHARING)
        for artifact in made:
            content = artifact.read_bytes()
            assert str(checkout.directory).encode() not in content, artifact
            assert str(checkout.output_root).encode() not in content, artifact


def test_programs_over_one_backbone_have_one_ptd(checkout: Workspace, built: Result) -> None:
    embedder, classifier = (
        checkout.output(f"examples/shared_weights/{name}.backbone.ptd") for name in ("embedder", "classifier")
    )
    assert embedder.read_bytes() == classifier.read_bytes()


def test_a_null_build_runs_nothing(checkout: Workspace, built: Result) -> None:
    assert checkout.build("//examples/...").mnemonics == []


def test_another_checkout_has_the_same_action_keys(other_checkout: Workspace, built: Result, disk_cache: Path) -> None:
    result = other_checkout.build("//examples/...", f"--disk_cache={disk_cache}")
    assert [name for name in result.mnemonics if name.startswith("Executorch")] == []


def test_another_checkout_makes_the_same_bytes(
    other_checkout: Workspace, built: Result, disk_cache: Path, tmp_path: Path
) -> None:
    other_checkout.run("clean")
    result = other_checkout.build("//examples/tiny_lm", f"--disk_cache={tmp_path}", *WORKERS)
    assert result.mnemonics.count("ExecutorchLower") == 3  # two methods, and the program
    keys, contents = names(tmp_path / "ac"), names(tmp_path / "cas")
    assert len(keys) >= 6
    assert keys <= names(disk_cache / "ac")
    assert contents <= names(disk_cache / "cas")


def test_the_order_of_keys_lowers_nothing_again(checkout: Workspace, built: Result) -> None:
    manifest = checkout.directory / "examples/mlp/model.yaml"
    text = manifest.read_text("utf-8")
    head, methods = text.split("methods:\n")
    head, model = head.split("model:\n")
    try:
        manifest.write_text(f"{head}methods:\n{methods}\n# A remark.\nmodel:\n{model}", "utf-8")
        assert checkout.build("//examples/mlp").mnemonics == ["ExecutorchPlan"]
    finally:
        manifest.write_text(text, "utf-8")


def test_a_changed_method_lowers_its_program_again_and_no_other(checkout: Workspace, built: Result) -> None:
    checkout.edit("examples/mlp/model.yaml", "shape: [1, 16]", "shape: [2, 16]")
    try:
        ours = [f"Executorch{step}" for step in ("Plan", "Export", "Lower", "Lower", "Compare", "Report")]
        assert checkout.build("//examples/...", *WORKERS).mnemonics == ours
    finally:
        checkout.edit("examples/mlp/model.yaml", "shape: [2, 16]", "shape: [1, 16]")


def test_a_changed_method_is_lowered_and_merged_with_the_others(checkout: Workspace, built: Result) -> None:
    checkout.edit("examples/tiny_lm/model.yaml", "shape: [1, 16]", "shape: [1, 17]")
    try:
        ours = checkout.build("//examples/tiny_lm", *WORKERS).mnemonics
        assert sorted(ours) == sorted(
            f"Executorch{step}" for step in ("Plan", "Export", "Lower", "Lower", "Compare", "Report")
        )
    finally:
        checkout.edit("examples/tiny_lm/model.yaml", "shape: [1, 17]", "shape: [1, 16]")


def test_the_lockfile_of_an_example_is_what_is_built(checkout: Workspace, built: Result, disk_cache: Path) -> None:
    checkout.run("test", "//examples/mlp:update_test", f"--disk_cache={disk_cache}")


def test_the_driver_runs_as_a_command(checkout: Workspace, built: Result) -> None:
    pte = checkout.output("examples/mlp/mlp.pte").resolve()
    result = checkout.run("run", "//:etbuild", "--", "inspect", str(pte))
    assert "forward" in result.out
    checkout.run("run", "//:etbuild", "--", "validate", "examples/mlp/model.yaml")  # relative to the user's directory


def test_output_groups(checkout: Workspace, tmp_path: Path) -> None:
    for group, files in {
        "pte": ["net.pte"],
        "named_data": ["net.down.ptd", "net.up.ptd"],
        "report": ["net.report.json"],
        "page": ["net.report.html"],
        "bundled": ["net.bpte"],
        "etrecord": ["net.etrecord"],
        "export": ["net.export", "net.export.down.pt2", "net.export.up.pt2"],
    }.items():
        shown = checkout.build("//rules/tests:net", f"--output_groups={group}", *WORKERS).err
        assert re.findall(r"tests/(net\..*)", shown) == files
    commands.build(checkout.directory / "rules/tests/net.yaml", tmp_path, "--etrecord")
    for name in ("down", "up"):
        record = f"net.etrecord/{name}.etrecord"
        assert sha256(checkout.output(f"rules/tests/{record}")) == sha256(tmp_path / record)


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_command_line_makes_the_same_bytes(
    checkout: Workspace, as_made_before: None, name: str, cli_built: Callable[[str], Path]
) -> None:
    [program] = (program for program in PROGRAMS if program.endswith(f"/{name}"))
    ours = cli_built(name)
    for suffix in ("pte", "index.json", "report.json", *(f"{tag}.ptd" for tag in PROGRAMS[program])):
        file = ours.with_suffix(f".{suffix}").name
        made = checkout.output(f"examples/{program}").with_name(file)
        assert sha256(made) == sha256(ours.with_name(file)), file


def test_the_gallery_has_a_target_for_each_manifest_and_builds_one(checkout: Workspace) -> None:
    """All of them together take minutes: `//examples/...` leaves them out."""
    checkout.build("//examples/gallery:all_programs", "--nobuild")
    assert not list((checkout.directory / "bazel-bin/examples/gallery").glob("*.pte"))
    checkout.build("//examples/gallery:lstm")
    assert checkout.output("examples/gallery/lstm.pte").stat().st_size > 100_000


def test_bazel_7_builds_a_program_in_its_hermetic_sandbox(
    checkout: Workspace, packages: Path, bazel7: Callable[..., Path]
) -> None:
    """An action sees its inputs, and what docs/hermetic.md mounts. The installed packages are not there."""
    python = (packages / "venv/bin/python").resolve()
    page = (REPOSITORY / "docs/hermetic.md").read_text("utf-8")
    mounts = {*re.findall(r"--sandbox_add_mount_pair=(/\S+)", page), str(python.parents[1])}
    sandbox = ["--experimental_use_hermetic_linux_sandbox", f"--@rules_executorch//toolchain:python={python}"]
    sandbox += ["--extra_toolchains=@rules_executorch//toolchain:remote", "--strategy=ExecutorchPackages=local"]
    sandbox += [f"--sandbox_add_mount_pair={mount}" for mount in sorted(mounts)]
    outputs = bazel7(checkout.directory, "build", "//examples/mlp", *sandbox)
    assert sha256(outputs / "examples/mlp/mlp.pte") == json.loads((GOLDEN / "mlp.json").read_text())["mlp.pte"]
