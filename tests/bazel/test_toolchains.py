"""Toolchains of other packages, interpreters and machines, in Bazel 7: examples/toolchains, examples/pypi, examples/uv.

A stand-in for rules_python gives the targets and the interpreter that it would download: its directory is STAND_IN."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tomllib

from tests.helpers import commands
from tests.helpers.snippets import snippets
from tests.helpers.workspaces import REPOSITORY

STAND_IN = REPOSITORY / "tests/bazel/stubs/rules_python"
NO_NETWORK = "error sending request|network was disabled"
"""What uv says when it reaches no index."""
PLATFORMS = """\

platform(
    name = "arm",
    constraint_values = ["@platforms//os:linux", "@platforms//cpu:aarch64"],
)

platform(
    name = "mac",
    constraint_values = ["@platforms//os:macos", "@platforms//cpu:aarch64"],
)
"""
ARM = """
bazel_dep(name = "platforms", version = "0.0.9")

executorch.toolchain(
    name = "arm",
    packages = {"sha256": "%s", "url": "https://files.example.com/packages.pex"},
    platform = "linux_aarch64",
)

# No target of it has a name of the one above.
executorch.toolchain(name = "arm_split")
""" % ("0" * 64)

Build = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def rules(snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the rules with the examples, which tests edit."""
    return shutil.copytree(snapshot, tmp_path_factory.mktemp("rules") / "rules", symlinks=True)


@pytest.fixture(scope="module")
def bazel(packages: Path, rules: Path, modern_bazel: Build, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`bazel(example, verb, *arguments)` with the packages that are built already: those of the default toolchain, and
    those of the targets of rules_python."""
    shared = tmp_path_factory.mktemp("shared")
    [site] = (packages / "venv/lib").glob("python3.*/site-packages")
    cache = (packages / "venv").resolve().parents[2]  # all packages of a user are there

    def run(example: str, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        options = [
            f"--override_module=rules_python={STAND_IN}",
            f"--override_repository=rules_executorch~~executorch~rules_executorch_packages={packages}",
            f"--repo_env=PYTHON_3_11={(packages / 'venv/bin/python').resolve()}",
            f"--repo_env=SITE_PACKAGES={site}",
            f"--repo_env=RULES_EXECUTORCH_CACHE={cache}",
            f"--symlink_prefix={shared}/{example}-",
            "--spawn_strategy=linux-sandbox,local",
        ]
        binds = [packages, cache, rules, STAND_IN, shared]
        return modern_bazel(rules / "examples" / example, binds, verb, *options, *arguments)

    run.__dict__["outputs"] = shared
    return run


def built(bazel: Build, example: str, target: str) -> dict[str, Path]:
    """Builds, and returns the files that Bazel says it made, by their names. Each toolchain has its own directory:
    Bazel prints it below its execution root."""
    done = bazel(example, "build", "--show_result=20", target)
    assert done.returncode == 0, done.stdout + done.stderr
    root = Path(bazel(example, "info", "execution_root").stdout.strip())
    found = re.findall(r"^  (\S+\.(?:pte|json))\s*$", done.stderr, re.MULTILINE)
    return {Path(name).name: root / name for name in found}


def with_the_backend(example: Path, wheel: Path) -> str:
    """Adds what the page about backends writes: the lock, and the target, here in the second toolchain. Returns the
    label of the lock."""
    blocks = [
        each.text for each in snippets() if each.page.endswith("custom-backend.md") and each.language == "starlark"
    ]
    label: str
    [label] = re.findall(r'extra_requirements = \["(//third_party:tally.lock)"\]', blocks[0])
    (example / "third_party").mkdir()
    (example / "third_party/BUILD").write_text('exports_files(["tally.lock"])\n')
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (example / "third_party/tally.lock").write_text(f"etbuild-tally==1.0 --hash=sha256:{digest}\n")
    (example / "tally").mkdir()
    for name in ("model.py", "tally.yaml"):
        shutil.copy(example.parent / "third_party_backend" / name, example / "tally")
    target = blocks[1].replace("    srcs", '    toolchain = "with_einops",\n    srcs')
    (example / "tally/BUILD").write_text(target)
    return label


def test_two_toolchains_build_two_programs_in_one_command(rules: Path, bazel: Build, tmp_path: Path) -> None:
    """The second one has two packages more, and an interpreter by its label. One of them has a backend."""
    lock = rules / "examples/toolchains/einops.lock"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r", str(lock)]
    if subprocess.run([*command, "-d", str(tmp_path)], check=False).returncode:
        pytest.skip("no package index here")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    source = shutil.copytree(rules / "examples/third_party_backend", tmp_path / "source/tally")
    subprocess.run([*command, "-w", str(tmp_path), str(source)], check=True)
    [wheel] = tmp_path.glob("etbuild_tally-*.whl")
    module = rules / "examples/toolchains/MODULE.bazel"
    line = '    extra_requirements = ["//:einops.lock"],\n'
    assert module.read_text().count(line) == 1
    more = line.replace("]", f', "{with_the_backend(module.parent, wheel)}"]')
    module.write_text(module.read_text().replace(line, f'{more}    pip_args = ["--find-links={tmp_path}"],\n'))
    made = built(bazel, "toolchains", "//...")
    assert {"patches.pte", "einops_patches.pte", "tally.pte"} <= made.keys()
    used = {name: json.loads(made[f"{name}.index.json"].read_text()) for name in ("patches", "einops_patches")}
    assert "einops" in used["einops_patches"]["inputs"]["toolchain"]["distributions"]
    assert "einops" not in used["patches"]["inputs"]["toolchain"]["distributions"]


def test_a_toolchain_is_chosen_by_its_name_and_by_the_machine(rules: Path, bazel: Build, packages: Path) -> None:
    """Nothing is built. The packages for the other machine cannot be had here, and that comes after the choice."""
    example = rules / "examples/toolchains"
    (example / "platforms").mkdir()
    (example / "platforms/BUILD").write_text(PLATFORMS)
    module = example / "MODULE.bazel"
    module.write_text(module.read_text() + ARM)

    def chosen(*options: str) -> str:
        debug = "--toolchain_resolution_debug=.*executorch.*"
        ours = f"--override_repository=rules_executorch~~executorch~rules_executorch_packages_with_einops={packages}"
        said = bazel("toolchains", "build", "--nobuild", "//:patches", debug, ours, *options)
        found = re.findall(r"-> toolchain \S*:(\S+)$", said.stderr, re.MULTILINE)
        return found[-1] if found else said.stderr

    arm = "--extra_execution_platforms=//platforms:arm"
    assert chosen() == "executorch"
    assert chosen("--@rules_executorch//toolchain:name=with_einops") == "executorch_with_einops"
    assert chosen(arm) == "executorch_arm.split"
    assert "There is no toolchain `next`. Known: default, with_einops, arm, arm_split." in chosen(
        "--@rules_executorch//toolchain:name=next"
    )


@pytest.mark.long
@pytest.mark.parametrize("example", ["pypi", "uv"])
def test_the_packages_of_the_workspace_build_the_same_program(
    rules: Path, bazel: Build, packages: Path, tmp_path: Path, example: str
) -> None:
    """What `etbuild` makes with the packages that pip installed. uv locks those of its example."""
    if example == "uv":
        [uv] = (packages / "venv").resolve().parents[2].glob("tools/*/bin/uv")
        command = [str(uv), "lock", "--quiet", "--project", str(rules / "examples/uv")]
        locked = subprocess.run(command, check=False, capture_output=True, text=True)
        if re.search(NO_NETWORK, locked.stderr):
            pytest.skip("no package index here")
        assert locked.returncode == 0, locked.stderr
    made = built(bazel, example, "//:net")
    commands.build(rules / "examples" / example / "net.yaml", tmp_path)
    assert made["net.pte"].read_bytes() == (tmp_path / "net.pte").read_bytes()


def test_the_example_of_uv_has_what_the_driver_needs() -> None:
    """Its dependencies are what `uv add --requirements` takes from the list of the rules."""
    project = tomllib.loads((REPOSITORY / "examples/uv/pyproject.toml").read_text("utf-8"))["project"]
    lines = (REPOSITORY / "toolchain/requirements.in").read_text("utf-8").splitlines()
    assert project["dependencies"] == [line for line in lines if not line.startswith("#")]


BY_PATH = """
def _runtime_impl(ctx):
    return [platform_common.ToolchainInfo(py3_runtime = struct(interpreter_path = "%s", %s))]

runtime = rule(implementation = _runtime_impl)
"""
USES_IT = """
load(":runtime.bzl", "runtime")

runtime(name = "runtime")

toolchain(
    name = "by_path",
    toolchain = ":runtime",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""


def test_an_interpreter_by_its_path_has_its_version_in_the_keys(rules: Path, bazel: Build, packages: Path) -> None:
    """So nothing that another Python at this path made is taken for a result of this one."""
    python = (packages / "venv/bin/python").resolve()
    told = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    major, minor, micro = map(int, told.split("."))
    package = rules / "examples/pypi/by_path"
    package.mkdir()
    (package / "BUILD").write_text(USES_IT)

    def said(version: str, *options: str) -> str:
        (package / "runtime.bzl").write_text(BY_PATH % (python, version))
        return bazel("pypi", "build", "//:with_our_torch.packages", "--extra_toolchains=//by_path", *options).stderr

    def info(micro: int) -> str:
        return f"interpreter_version_info = struct(major = {major}, minor = {minor}, micro = {micro}, serial = 0)"

    untold = f"names an interpreter by its path, {python}, and does not tell its version"
    assert untold in said("", "--nobuild")
    assert untold in said("interpreter_version_info = struct(major = None)", "--nobuild")
    told = f"Python {told}, and Bazel's Python toolchain says that it is {major}.{minor}.{micro + 1}"
    assert told in said(info(micro + 1))
    assert "ERROR" not in said(info(micro), "--nobuild")
    shutil.rmtree(package)


def test_what_the_driver_needs_has_to_be_there(rules: Path, bazel: Build) -> None:
    build = rules / "examples/pypi/BUILD"
    text = build.read_text()
    names = re.findall(r'"(.+)",', (rules / "rules/private/package_facts.bzl").read_text().partition("]")[0])
    labels = [f"@pypi//{name.replace('-', '_')}" for name in names if name != "rich"]
    build.write_text(text.replace('hub = "@pypi"', f"deps = {json.dumps(labels)}"))
    try:
        said = bazel("pypi", "build", "--nobuild", "//:net").stderr
    finally:
        build.write_text(text)
    assert "the driver needs packages that `deps` do not have: rich. " in said
