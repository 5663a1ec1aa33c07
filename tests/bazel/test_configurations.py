"""A program is built once for all configurations that need it, and its actions run on machines that can run them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.manifests import one_method
from tests.helpers.workspaces import WORKERS, Workspace, executed

ONCE = "--//toolchain:one_configuration"
RULES = """\
ALLOWLIST = "@bazel_tools//tools/allowlists/function_transition_allowlist"

def _abis_impl(_settings, _attr):
    platforms = ["//configurations:" + abi for abi in ("arm", "x86", "ppc", "s390x")]
    return {name: {"//command_line_option:platforms": name} for name in platforms}

abis = transition(implementation = _abis_impl, inputs = [], outputs = ["//command_line_option:platforms"])

def _apps_impl(ctx):
    return [DefaultInfo(files = depset(transitive = [dep[DefaultInfo].files for dep in ctx.attr.program]))]

def _cpus_impl(_settings, _attr):
    return {name: {"//command_line_option:cpu": name} for name in ["arm64-v8a", "armeabi-v7a"]}

cpus = transition(implementation = _cpus_impl, inputs = [], outputs = ["//command_line_option:cpu"])

def _versions_impl(_settings, _attr):
    return {version: {"//command_line_option:minimum_os_version": version} for version in ["12.0", "13.0"]}

versions = transition(
    implementation = _versions_impl,
    inputs = [],
    outputs = ["//command_line_option:minimum_os_version"],
)

_APPLE = ["apple_platform_type", "apple_split_cpu", "cpu", "ios_minimum_os", "tvos_minimum_os"]

def _apple_impl(_settings, _attr):
    values = {"ios": ["ios", "arm64", "ios_arm64", "12.0", None], "tvos": ["tvos", "arm64", "tvos_arm64", None, "13.0"]}
    options = ["//command_line_option:" + option for option in _APPLE]
    return {system: dict(zip(options, values[system])) for system in values}

apple = transition(
    implementation = _apple_impl,
    inputs = [],
    outputs = ["//command_line_option:" + option for option in _APPLE],
)

def _apps(split):
    return rule(
        implementation = _apps_impl,
        attrs = {
            "program": attr.label(allow_files = True, cfg = split),
            "_allowlist_function_transition": attr.label(default = ALLOWLIST),
        },
    )

apps = _apps(abis)
apps_for_apple = _apps(apple)
apps_for_cpus = _apps(cpus)
apps_for_versions = _apps(versions)

def _tool_impl(ctx):
    return [DefaultInfo(files = ctx.attr.program[DefaultInfo].files)]

tool = rule(implementation = _tool_impl, attrs = {"program": attr.label(cfg = "exec")})
"""
BUILD = """\
load("//rules:defs.bzl", "executorch_program", "executorch_toolchain")
load(":rules.bzl", "apps", "apps_for_apple", "apps_for_cpus", "apps_for_versions", "tool")

executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
)

executorch_program(
    name = "chosen",
    srcs = ["model.py"],
    configuration = select({"//conditions:default": "one"}),
    manifest = "net.yaml",
    manifest_name = "net",
)

apps(
    name = "apps",
    program = ":net.pte",
)

apps_for_apple(
    name = "apple",
    program = ":net",
)

apps_for_cpus(
    name = "cpus",
    program = ":net",
)

apps_for_versions(
    name = "versions",
    program = ":net",
)

tool(
    name = "tool",
    program = ":net",
)

filegroup(
    name = "all",
    srcs = [":apple", ":apps", ":cpus", ":net", ":tool", ":versions"],
)

[platform(
    name = abi,
    constraint_values = ["@platforms//os:linux", "@platforms//cpu:" + cpu],
) for abi, cpu in [("arm", "aarch64"), ("x86", "x86_32"), ("ppc", "ppc"), ("s390x", "s390x")]]

constraint_setting(name = "sdk")

constraint_value(
    name = "vendor_sdk",
    constraint_setting = ":sdk",
)

platform(
    name = "with_sdk",
    constraint_values = ["@platforms//os:linux", "@platforms//cpu:aarch64", ":vendor_sdk"],
)

executorch_toolchain(
    name = "vendor",
    driver = "//toolchain:etbuild",
)

toolchain(
    name = "vendor_toolchain",
    exec_compatible_with = [":vendor_sdk"],
    toolchain = ":vendor",
    toolchain_type = "//toolchain:toolchain_type",
)

executorch_program(
    name = "with_vendor",
    srcs = ["model.py"],
    exec_compatible_with = [":vendor_sdk"],
    manifest = "net.yaml",
    manifest_name = "net",
)
"""
MODEL = """\
import torch

def create():
    return torch.nn.Linear(8, 4)
"""
PACKAGE = "configurations"
STEPS = [f"Executorch{step}" for step in ("Plan", "Export", "Lower", "Lower", "Compare", "Report")]


@pytest.fixture(scope="module")
def package(checkout: Workspace) -> Iterator[Workspace]:
    for name, text in {"BUILD": BUILD, "rules.bzl": RULES, "net.yaml": one_method(), "model.py": MODEL}.items():
        checkout.write(f"{PACKAGE}/{name}", text)
    yield checkout
    for path in (checkout.directory / PACKAGE).iterdir():
        path.unlink()


def actions(workspace: Workspace, target: str, *options: str) -> list[dict[str, str]]:
    """The actions of the driver that a target needs: the lines of each."""
    return listed(workspace.run("aquery", f'mnemonic("Executorch.*", deps({target}))', *options).out)


def listed(text: str) -> list[dict[str, str]]:
    """The steps among the actions that Bazel lists: the lines of each."""
    blocks = re.split(r"\n(?=action )", text)
    found = [dict(re.findall(r"^ +(\w+): (.*)$", block, re.MULTILINE)) for block in blocks]
    return [block for block in found if block.get("Mnemonic") in STEPS]


def counted(found: list[dict[str, str]]) -> Counter[str]:
    return Counter(action["Mnemonic"] for action in found)


def test_four_platforms_have_one_lowering(package: Workspace) -> None:
    target = f"//{PACKAGE}:apps"
    assert counted(actions(package, target)) == Counter(4 * STEPS)
    assert counted(actions(package, target, ONCE)) == Counter(STEPS)


@pytest.mark.parametrize("target", ["cpus", "versions"])
def test_processors_and_versions_of_a_system_have_one_lowering(package: Workspace, target: str) -> None:
    """As rules for Android and Apple's systems split their dependencies. Bazel 4 lowers once more outside of it."""
    assert counted(actions(package, f"//{PACKAGE}:{target}")) == Counter(2 * STEPS)
    assert counted(actions(package, f"//{PACKAGE}:{target}", ONCE)) == Counter(STEPS)


@pytest.mark.long
def test_bazel_7_lowers_once_for_all_splits(package: Workspace, bazel7: Callable[..., Path], tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    bazel7(package.directory, "build", f"//{PACKAGE}:all", ONCE, f"--execution_log_json_file={log}", *WORKERS)
    assert sorted(name for name in executed(log)[0] if name in STEPS) == sorted(STEPS)


def test_every_configuration_has_the_same_actions(package: Workspace) -> None:
    """The compilation modes, the platforms, and the configuration of tools."""
    keys = [
        {action["ActionKey"] for action in actions(package, f"//{PACKAGE}:{target}", ONCE, *options)}
        for target, options in (
            ("net", ()),
            ("net", ("--compilation_mode=opt",)),
            ("net", (f"--platforms=//{PACKAGE}:arm",)),
            ("apps", ("--compilation_mode=opt",)),
            ("tool", ()),
        )
    ]
    assert len(keys[0]) == len(STEPS)
    assert keys == [keys[0]] * len(keys)


def test_a_program_is_built_once(package: Workspace) -> None:
    assert package.build(f"//{PACKAGE}:net", ONCE, *WORKERS).mnemonics == STEPS
    for target, options in (("net", "--compilation_mode=opt"), ("apps", "--compilation_mode=fastbuild")):
        assert package.build(f"//{PACKAGE}:{target}", ONCE, options, *WORKERS).mnemonics == []


def test_a_target_can_have_its_own_configuration(package: Workspace) -> None:
    package.edit(
        f"{PACKAGE}/BUILD", 'name = "net",\n    srcs', 'name = "net",\n    configuration = "target",\n    srcs'
    )
    try:
        assert counted(actions(package, f"//{PACKAGE}:apps", ONCE)) == Counter(4 * STEPS)
    finally:
        package.write(f"{PACKAGE}/BUILD", BUILD)


def test_bazel_4_says_that_select_cannot_choose_a_configuration(package: Workspace) -> None:
    said = package.build(f"//{PACKAGE}:chosen", "--nobuild", expect=1).err
    assert "this version of Bazel cannot read a select() for `configuration`: write one value" in said


def test_bazel_7_reads_the_select_of_a_configuration(package: Workspace, bazel7: Callable[..., Path]) -> None:
    """It resolves the `select()` before the target has its own configuration."""
    bazel7(package.directory, "build", f"//{PACKAGE}:chosen", "--nobuild")


def test_actions_run_on_machines_that_their_packages_are_for(package: Workspace) -> None:
    """pip installed the packages on this machine. A platform of another processor comes first here."""
    other = f"--extra_execution_platforms=//{PACKAGE}:with_sdk"
    vendor = f"--extra_toolchains=//{PACKAGE}:vendor_toolchain"

    def chosen(target: str, *options: str) -> set[tuple[str, str]]:
        """The execution platform and the toolchain of a program."""
        said = package.build(f"//{PACKAGE}:{target}", "--nobuild", "--toolchain_resolution_debug", other, *options).err
        pattern = r"Selected execution platform (\S+), type //toolchain:toolchain_type -> toolchain (\S+)"
        return set(re.findall(pattern, said))

    ours, host = "//toolchain:executorch", "@local_config_platform//:host"
    assert chosen("net") == {(host, ours)}
    assert chosen("with_vendor", vendor) == {(f"//{PACKAGE}:with_sdk", f"//{PACKAGE}:vendor")}
    assert "toolchain" in package.build(f"//{PACKAGE}:with_vendor", "--nobuild", other, expect=1).err


def test_bazel_7_gives_the_properties_of_one_step_to_its_actions_only(
    package: Workspace, bazel7: Callable[..., Path], tmp_path: Path
) -> None:
    properties = 'exec_properties = {"lower.Pool": "large", "Region": "north"},'
    package.edit(f"{PACKAGE}/BUILD", 'name = "net",\n    srcs', f'name = "net",\n    {properties}\n    srcs')
    said = tmp_path / "actions.txt"
    try:
        bazel7(package.directory, "aquery", f'mnemonic("Executorch.*", //{PACKAGE}:net)', f"--output_file={said}")
    finally:
        package.write(f"{PACKAGE}/BUILD", BUILD)
    found = {action["Mnemonic"]: action["ExecutionInfo"] for action in listed(said.read_text())}
    assert {name for name, info in found.items() if "Pool: large" in info} == {"ExecutorchLower"}
    assert {name for name, info in found.items() if "Region: north" in info} == {*STEPS}


def test_bazel_7_runs_all_steps_on_the_machines_that_a_target_needs(
    package: Workspace, bazel7: Callable[..., Path], tmp_path: Path
) -> None:
    """`exec_compatible_with` says nothing about groups of actions."""
    said = tmp_path / "actions.txt"
    platforms = f"--extra_execution_platforms=@platforms//host,//{PACKAGE}:with_sdk"
    vendor = f"--extra_toolchains=//{PACKAGE}:vendor_toolchain"
    for target, expected in (("net", "host"), ("with_vendor", "with_sdk")):
        actions_of = f'mnemonic("Executorch.*", //{PACKAGE}:{target})'
        bazel7(package.directory, "aquery", actions_of, platforms, vendor, f"--output_file={said}")
        assert set(re.findall(r"^ +Execution platform: \S+:(\w+)$", said.read_text(), re.MULTILINE)) == {expected}


def test_bazel_7_finds_the_results_of_another_configuration(
    package: Workspace, bazel7: Callable[..., Path], tmp_path: Path
) -> None:
    """It leaves the configuration out of the paths in an action's key. The flags are those of docs/platforms.md.

    Planning then finds the plug-ins that it has not used by the paths that it saw.
    """
    log = tmp_path / "log.json"
    mapped = (
        "--experimental_output_paths=strip",
        "--worker_sandboxing",
        "--noworker_multiplex",
        *WORKERS,
        f"--disk_cache={tmp_path / 'cache'}",
        f"--execution_log_json_file={log}",
    )
    bin_directory = bazel7(package.directory, "build", f"//{PACKAGE}:net", *mapped)
    outputs = [bin_directory / f"{PACKAGE}/net.{end}" for end in ("pte", "index.json")]
    place, made = bin_directory.resolve(), [file.read_bytes() for file in outputs]
    assert sorted(name for name in executed(log)[0] if name in STEPS) == sorted(STEPS)
    for target, options in (("net", ["--compilation_mode=opt"]), ("apps", []), ("tool", [])):
        bazel7(package.directory, "build", f"//{PACKAGE}:{target}", *mapped, *options)
        run, hits = executed(log)
        assert [name for name in run if name in STEPS] == []
        # Bazel runs no validations of tools.
        assert set(hits) >= set(STEPS) - ({"ExecutorchCompare"} if target == "tool" else set())
        if target == "net":
            assert bin_directory.resolve() != place
            assert [file.read_bytes() for file in outputs] == made
    backend = package.directory / "toolchain/etplugins/coreml/backend.py"
    before = backend.read_text("utf-8")
    backend.write_text(f"{before}\nEDITED = 1\n", "utf-8")
    try:
        bazel7(package.directory, "build", f"//{PACKAGE}:net", *mapped)
    finally:
        backend.write_text(before, "utf-8")
    assert [name for names in executed(log) for name in names if name in STEPS] == []
