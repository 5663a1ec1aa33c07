"""The rules for Buck2, evaluated by its interpreter with a stub of its API. See `api.star`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import starlark

from tests.buck2.evaluation import REPOSITORY, Buck2
from tests.helpers.drivers import rules

PROJECT = REPOSITORY / "examples/buck2"
TOOLCHAIN = """
load("@rules_executorch//contrib/buck2:defs.bzl", "executorch_driver", "executorch_toolchain", "executorch_worker")

executorch_driver(name = "etbuild", packages = "packages.pex")
executorch_worker(name = "worker", driver = ":etbuild", concurrency = 2)
executorch_toolchain(name = "executorch", driver = ":etbuild", weight = 2, worker = ":worker")
"""
WITHOUT_BUCK2 = "no `buck2` on PATH: the rules were only evaluated by its interpreter"


def evaluate(
    files: dict[str, Path], edits: dict[str, tuple[str, str]] | None = None, toolchain: Path | None = None
) -> Any:
    """Evaluates BUCK files of packages, and analyzes their targets."""
    buck = Buck2(edits or {})
    buck.build_file(REPOSITORY / "toolchain/BUCK", "toolchain", "rules_executorch")
    buck.build_file(toolchain or PROJECT / "toolchains/BUCK", "", "toolchains")
    for package, file in files.items():
        buck.build_file(file, package)
    return buck.analyze()


def project(edits: dict[str, tuple[str, str]] | None = None, toolchain: Path | None = None) -> Any:
    """The example."""
    packages = ("models/common", "apps/pair")
    return evaluate({each: PROJECT / each / "BUCK" for each in packages}, edits, toolchain)


def package(directory: Path, text: str, *files: str) -> Any:
    """A BUCK file with these rules and files beside it."""
    for name in ("net.yaml", "net.py", *files):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("")
    loads = '"executorch_library", "executorch_lock", "executorch_program", "executorch_programs"'
    (directory / "BUCK").write_text(f'load("@rules_executorch//contrib/buck2:defs.bzl", {loads})\n{text}')
    return evaluate({"net": directory / "BUCK"})


@pytest.fixture(scope="module")
def example() -> Any:
    return project()


def test_the_example_has_an_action_for_each_step(example: Any) -> None:
    assert [(each["category"], each["identifier"]) for each in example["actions"]] == [
        ("executorch_plan", None),
        ("executorch_export", None),
        ("executorch_lower", "embed"),
        ("executorch_lower", "score"),
        ("executorch_lower", None),
        ("executorch_compare", None),
        ("executorch_report", None),
        ("executorch_page", None),
        ("executorch_bundle", None),
        ("executorch_etrecord", None),
    ]


def test_sub_targets_name_each_file(example: Any) -> None:
    label = "root//apps/pair:pair"
    names = {
        name.removeprefix(label): [path.rpartition("/")[2] for path in paths]
        for name, paths in example["files"].items()
        if name.startswith(label)
    }
    assert names == {
        "": ["pair.pte"],
        "[pte]": ["pair.pte"],
        "[ptd]": ["pair.encoder.ptd"],
        "[ptd][encoder]": ["pair.encoder.ptd"],
        "[index]": ["pair.index.json"],
        "[report]": ["pair.report.json"],
        "[page]": ["pair.report.html"],
        "[bundled]": ["pair.bpte"],
        "[etrecord]": ["pair.etrecord"],
        "[export]": ["pair.export", "pair.export.embed.pt2", "pair.export.score.pt2"],
    }


def test_a_build_waits_for_the_checks_whatever_it_takes(example: Any) -> None:
    [(label, validations)] = example["validations"].items()
    assert label == "root//apps/pair:pair"
    for category, validation in zip(("executorch_report", "executorch_compare"), validations, strict=True):
        [action] = [each for each in example["actions"] if each["category"] == category]
        [written] = [path for path, final in action["outputs"].items() if final == validation]
        assert any(word.endswith(written) for word in action["argv"])


def test_the_lock_is_a_test_and_a_command(example: Any) -> None:
    [(label, command)] = example["tests"].items()
    assert label == "root//apps/pair:update_test"
    verb, index, *rest = command[-4:]
    assert (verb, rest) == ("lock", ["apps/pair/pair.lock.json", "--hint=buck2 run root//apps/pair:update"])
    assert [index] == example["files"]["root//apps/pair:pair[index]"]
    assert example["runs"]["root//apps/pair:update"][-1] == "--update"
    assert example["runs"]["root//apps/pair:update"][-2].endswith("/apps/pair/pair.lock.json")


def test_every_path_depends_on_content_and_not_on_the_configuration(example: Any) -> None:
    assert all(all(each["content_based"]) for each in example["actions"])


def test_every_input_in_the_arguments_is_declared(example: Any) -> None:
    for action in example["actions"]:
        known = {*action["inputs"], *action["outputs"]}
        for word in action["argv"]:
            path = word.rpartition("=")[2]
            if "/" in path and not word.startswith(("--manifest-name=", "--rule-target=")):
                assert path in known or any(each.startswith(f"{path}/") for each in action["outputs"]), word
        assert "rules_executorch/toolchain/etbuild/__main__.py" in action["inputs"]
        assert "toolchains/packages.pex" in action["inputs"]


@pytest.mark.parametrize(
    ("attributes", "named", "expected"),
    [
        ("plugins = []", [], ""),
        ('plugins = ["lora"], backends = ["webgpu"]', ["lora", "vulkan"], "lora"),
        ("", None, None),
    ],
)  # fmt: skip
def test_steps_have_the_plugins_that_a_target_names(
    tmp_path: Path, attributes: str, named: list[str] | None, expected: str | None
) -> None:
    actions = package(tmp_path, f'executorch_program(name = "net", manifest = "net.yaml", {attributes})')["actions"]
    place, every = "rules_executorch/toolchain/etplugins", rules()["PLUGINS"]
    for action in (each for each in actions if each["category"].removeprefix("executorch_") in rules()["STEPS"]):
        given = [word.removeprefix("--plugin=") for word in action["argv"] if word.startswith("--plugin=")]
        expected_here = [] if action["category"] != "executorch_plan" else [*every] if named is None else named
        assert given == [f"{place}/{name}" for name in expected_here]
        there = {name for name in every if f"{place}/{name}/__init__.py" in action["inputs"]}
        assert there == set(expected_here)
        handed = {each for each in action["inputs"] if each.endswith(".plugins")}
        assert len(handed) == (action["category"] != "executorch_plan")
    said = [word.partition("=")[2] for word in actions[0]["argv"] if word.startswith("--expect-plugins=")]
    assert said == ([] if expected is None else [expected])


def test_only_steps_with_pytorch_run_in_a_worker(tmp_path: Path) -> None:
    file = tmp_path / "BUCK"
    file.write_text(TOOLCHAIN)
    for action in project(toolchain=file)["actions"]:
        in_worker = action["category"] in (
            "executorch_export",
            "executorch_lower",
            "executorch_compare",
            "executorch_etrecord",
        )
        assert (action["worker"] is not None) == in_worker
        assert action["weight"] == (2 if in_worker or action["category"] == "executorch_bundle" else 1)
        if in_worker:
            assert action["worker"] == [*action["tool"], "--persistent_worker"]


def test_a_program_is_verified_on_request(tmp_path: Path) -> None:
    text = 'executorch_program(name = "net", manifest = "net.yaml", srcs = ["net.py"], verify_reproducible = True)'
    actions = package(tmp_path, text)["actions"]
    [verify] = [each for each in actions if each["category"] == "executorch_verify"]
    [report] = [each for each in actions if each["category"] == "executorch_report"]
    assert {*verify["outputs"].values()} <= {*report["inputs"]}


@pytest.mark.parametrize(
    ("attributes", "templates", "with_weights"),
    [
        ("", ["methods"], []),
        ('methods = ["a"]', ["methods"], []),
        ('methods = ["a", "b"]', ["a", "b"], []),
        ('methods = ["a", "b"], backends = ["portable", "xnnpack"]', ["a", "b"], []),
        ('methods = ["a", "b"], backends = ["openvino", "xnnpack"]', ["a", "b"], ["a", "b"]),
        ('backends = ["openvino"]', ["methods"], []),
    ],
)
def test_actions_read_weights_only_if_their_backends_compile_them(
    tmp_path: Path, attributes: str, templates: list[str], with_weights: list[str]
) -> None:
    text = f'executorch_program(name = "net", manifest = "net.yaml", weights = ["w"], data = ["d"], {attributes})'
    actions = [each for each in package(tmp_path, text, "w", "d")["actions"] if each["category"] == "executorch_lower"]
    assert [each["identifier"] for each in actions] == [*templates, None]
    assert all("net/d" in each["inputs"] for each in actions)
    assert [each["identifier"] for each in actions if "net/w" in each["inputs"]] == [*with_weights, None]
    assert [each["identifier"] for each in actions if "--with-weights" in each["argv"]] == with_weights
    lowered = [path for each in actions[:-1] for path in each["outputs"].values()]
    assert {*lowered} <= {*actions[-1]["inputs"]}


def test_variants_share_one_export(tmp_path: Path) -> None:
    text = """executorch_programs(
        name = "net", manifest = "net.yaml", srcs = ["net.py"], variants = {"ios": {}, "int8": {"export": None}},
    )"""
    actions = package(tmp_path, text)["actions"]
    assert [each["target"] for each in actions if each["category"] == "executorch_export"] == [
        "//net:net",
        "//net:net.int8",
    ]
    [ios] = [each for each in actions if each["target"] == "//net:net.ios" and each["category"] == "executorch_plan"]
    assert "--variant=ios" in ios["argv"]
    assert "--expect-name=net.ios" in ios["argv"]


def test_files_of_targets_have_the_names_that_the_manifest_uses(tmp_path: Path) -> None:
    text = """executorch_library(name = "lib", srcs = ["lib.py"], import_root = ".")
executorch_program(name = "net", manifest = "net.yaml", srcs = ["net.py"], deps = [":lib"],
                   weights = ["w/a.safetensors"], data_as = {"batches.safetensors": "other.safetensors"},
                   tokenizer = ["tokenizer.json"])"""
    actions = package(tmp_path, text, "lib.py", "w/a.safetensors", "other.safetensors", "tokenizer.json")["actions"]
    words = {each["category"]: each["argv"] for each in actions}
    assert "--source=lib.py=net/lib.py" in words["executorch_export"]
    assert "--data=batches.safetensors=net/other.safetensors" in words["executorch_export"]
    assert "--data=w/a.safetensors=net/w/a.safetensors" in words["executorch_lower"]
    assert "--data=tokenizer.json=net/tokenizer.json" in words["executorch_report"]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ('methods = ["a", "a"]', "root//net:net: attribute `methods`: 'a' is listed twice"),
        ('named_data = ["pte"]', "attribute `named_data`: 'pte' cannot be a tag"),
        ('named_data = ["a"], sharded_named_data = ["a"]', "attribute `sharded_named_data`: 'a' is listed twice"),
        ('parameters = {"a": "1\\n2"}', "attribute `parameters`: the value of 'a' has a line end"),
        ('data_as = {"../a": "net.py"}', "attribute `data_as`: '../a' is not a name of a file"),
        ('data = ["a"], weights = ["a"]', "attribute `weights`: a is listed twice, as 'a'"),
        ('data = ["a=b"]', "attribute `data`: 'a=b' has a `=` in its name"),
        ('deps = [":lib"], srcs = ["net.py"], methods = 3', "3 is no list"),
        ('export = ":base", data = ["a"]', "attribute `data`: the target of `export` has other files"),
        ('method = ["a"]', "no attribute `method`"),
    ],
)
def test_a_wrong_attribute_is_named(tmp_path: Path, attributes: str, message: str) -> None:
    text = f"""executorch_library(name = "lib", srcs = ["lib.py"])
executorch_program(name = "base", manifest = "net.yaml")
executorch_program(name = "net", manifest = "net.yaml", {attributes})"""
    with pytest.raises(starlark.StarlarkError, match=re.escape(message)):
        package(tmp_path, text, "lib.py", "a", "a=b")


def test_a_library_is_below_its_import_root(tmp_path: Path) -> None:
    for root in ("../x", "/x"):
        with pytest.raises(starlark.StarlarkError, match="attribute `import_root`"):
            package(tmp_path, f'executorch_library(name = "lib", srcs = ["lib.py"], import_root = "{root}")', "lib.py")
    with pytest.raises(starlark.StarlarkError, match=r"net/lib\.py is not below the import root 'net/sub'"):
        package(tmp_path, 'executorch_library(name = "lib", srcs = ["lib.py"], import_root = "sub")', "lib.py")


def test_a_lockfile_is_in_the_package(tmp_path: Path) -> None:
    text = """executorch_program(name = "net", manifest = "net.yaml")
executorch_lock(name = "u", program = ":net", lock = "a/b")"""
    with pytest.raises(starlark.StarlarkError, match="'a/b' is not the name of a file in this package"):
        package(tmp_path, text)


def test_the_attributes_are_those_of_the_rule_for_bazel() -> None:
    bazel = re.findall(
        r'^    "(\w+)": (?:attr\.|program_attribute\()',
        (REPOSITORY / "rules/private/program.bzl").read_text("utf-8"),
        re.MULTILINE,
    )
    text = (REPOSITORY / "contrib/buck2/program.bzl").read_text("utf-8").partition("\n_ATTRS = dict(")[2]
    buck2 = re.findall(r'^        "(\w+)": ', text, re.MULTILINE)
    # Buck2 has its own ways for configurations, toolchains, memory and labels of outputs.
    of_bazel = {"configuration", "_allowlist_function_transition", "toolchain", "resource_set", "pte", "ptd"}
    assert set(bazel) - of_bazel == set(buck2)


MISTAKES = {
    "contrib/buck2/driver.bzl": ("item.file.as_output() if item.file in outputs else item.file", "item.file"),
    "contrib/buck2/library.bzl": ("value = sources,", "value = [],"),
    "contrib/buck2/program.bzl": ("exported.actions + made.actions + more.actions", "exported.actions + more.actions"),
    "contrib/buck2/toolchain.bzl": (
        "driver = ctx.attrs.driver.get(RunInfo),\n            weight",
        "driver = None,\n            weight",
    ),
    "contrib/buck2/providers.bzl": (
        '"weight": provider_field(int, default = 1)',
        '"weight": provider_field(str, default = "1")',
    ),
    "contrib/buck2/lock.bzl": ('type = "executorch_lock",', ""),
    "contrib/buck2/files.bzl": ("prefix + file.short_path", "file.basename"),
    "rules/private/program_actions.bzl": ("outputs = [pte] + named_data.values()", "outputs = named_data.values()"),
}


@pytest.mark.parametrize("path", sorted(MISTAKES))
def test_a_mistake_in_the_rules_is_found(path: str, example: Any) -> None:
    """Each mistake fails in the stub, or changes what the other tests look at."""
    try:
        found = project({path: MISTAKES[path]})
    except starlark.StarlarkError:
        return
    assert found != example


@pytest.mark.torch
def test_the_actions_of_the_example_build_it(example: Any, tmp_path: Path) -> None:
    """Runs each action as Buck2 does: in the root of the project, with the arguments in a file and this environment.
    Each output is then moved to its own directory."""
    root = shutil.copytree(PROJECT, tmp_path / "project")
    for number, action in enumerate(example["actions"]):
        for path in action["outputs"]:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
        file = root / f"{number}.args"
        file.write_text("".join(f"{word}\n" for word in action["argv"]))
        command = [sys.executable, "-m", "etbuild", f"@{file}"]
        done = subprocess.run(command, cwd=root, env=action["env"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for path, final in action["outputs"].items():
            (root / final).parent.mkdir(parents=True, exist_ok=True)
            (root / path).rename(root / final)
    for validation in example["validations"]["root//apps/pair:pair"]:
        said = json.loads((root / validation).read_text())
        assert (said["version"], said["data"]["status"]) == (1, "success")  # a note may stand beside it
    test = example["tests"]["root//apps/pair:update_test"]
    command = [sys.executable, "-m", "etbuild", *test[test.index("lock") :]]
    assert subprocess.run(command, cwd=root, check=False).returncode == 0


@pytest.mark.skipif(not shutil.which("buck2"), reason=WITHOUT_BUCK2)
def test_buck2_builds_the_example(tmp_path: Path, packages: Path) -> None:
    root = shutil.copytree(PROJECT, tmp_path / "project")
    for name in ("contrib", "rules", "toolchain"):
        shutil.copytree(REPOSITORY / name, root / "rules_executorch" / name)
    pack: list[str | Path] = [packages / "venv/bin/python", "-E", "-s", "-S", REPOSITORY / "toolchain/packages_file.py"]
    files = [packages / "packages.json", root / "toolchains/packages.pex", (packages / "venv").resolve()]
    subprocess.run([*pack, *files], check=True)
    try:
        for verb, target in (("build", "//apps/pair:pair[ptd][encoder]"), ("test", "//apps/pair:update_test")):
            done = subprocess.run(["buck2", verb, target], cwd=root, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["buck2", "kill"], cwd=root, check=False)
