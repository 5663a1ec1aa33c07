"""What every macro passes on."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.helpers.workspaces import Workspace
from tools.reference.starlark import Loader

from ..starlark_files import REPOSITORY

# For each macro: its arguments, and the targets that users name, without those that they name themselves.
MACROS = {
    "executorch_cc_library": ('program = ":net", runtime = ":runtime"', [""]),
    "executorch_checkpoints": (
        'manifest = "net.yaml", checkpoint_as = "net.pt", checkpoints = ["a.pt"]',
        ["", ".a"],
    ),
    "executorch_embed": ('program = ":net", runtime = ":runtime"', [""]),
    "executorch_kernels_library": ('selected_ops = "ops.yaml", runtime = ":runtime", srcs = ["kernels.cpp"]', [""]),
    "executorch_lock": ('program = ":net", lock = "net.lock.json"', ["", "_test"]),
    "executorch_program": ('manifest = "net.yaml"', [""]),
    "executorch_program_test": ('program = ":net"', [""]),
    "executorch_program_test_suite": ('programs = [":net"]', ["", ".net"]),
    "executorch_programs": ('manifest = "net.yaml", variants = {"ios": {}}', ["", ".ios"]),
    "executorch_py_toolchain": ("deps = []", [""]),
}
COMMON = {
    "compatible_with": ["//attributes:environment"],
    "deprecation": "old",
    "exec_compatible_with": ["@platforms//os:linux"],
    "exec_properties": {"pool": "large"},
    "features": ["-layering_check"],
    "restricted_to": ["//attributes:environment"],
    "tags": ["team"],
    "target_compatible_with": ["@platforms//os:linux"],
    "testonly": True,
    "visibility": ["//attributes:__subpackages__"],
}
NOT_OF_SUITES = ("exec_compatible_with", "exec_properties", "target_compatible_with")


def test_bazel_7_loads_the_rules_without_globals_of_languages(checkout: Workspace, bazel7: Callable[..., Path]) -> None:
    """As in Bazel 9. The flag breaks Bazel's own rules for Java, so this only loads: these targets are `manual`.
    Debian's rules_cc is too old for the flag, so a stand-in takes its place."""
    flag = "--incompatible_stop_exporting_language_modules"
    rules_cc = f"--override_module=rules_cc={checkout.directory}/tests/bazel/stubs/rules_cc"
    bazel7(checkout.directory, "build", "//examples/cpp:all", "--nobuild", flag, rules_cc)


def test_the_tests_of_the_rules_pass(checkout: Workspace) -> None:
    """Of providers, files, actions and errors: targets that are only analysed. Bazel starts once for all of them."""
    checkout.run("test", "//rules/...", "--test_tag_filters=-bazel7", "--test_output=errors")


def test_the_tests_of_the_rules_pass_with_bazel_skylib(checkout: Workspace, bazel7: Callable[..., Path]) -> None:
    """Bazel 4 has a stand-in for it."""
    bazel7(checkout.directory, "test", "//rules/...", "--test_output=errors")


@pytest.fixture(scope="module")
def targets(checkout: Workspace) -> Iterator[list[dict[str, Any]]]:
    """The attributes of each target of all macros. Each macro gets every attribute that any target can have."""
    common = ", ".join(f"{name} = {value!r}" for name, value in COMMON.items())
    loads = [f'load("//rules:{"cc" if "runtime" in MACROS[name][0] else "defs"}.bzl", "{name}")' for name in MACROS]
    calls = [f'{name}(name = "{name}", {own}, {common})' for name, (own, _) in MACROS.items()]
    checkout.write("attributes/BUILD", "\n".join([*loads, *calls]) + "\n")
    done = checkout.bazel("query", checkout.override, "//attributes:all", "--output=xml")
    assert done.returncode == 0, done.stderr
    yield [attributes(rule) for rule in ET.fromstring(done.stdout)]
    (checkout.directory / "attributes/BUILD").unlink()


def attributes(rule: ET.Element) -> dict[str, Any]:
    """Reads a target of `query --output=xml`."""
    found: dict[str, Any] = {"name": str(rule.get("name")).partition(":")[2], "class": rule.get("class")}
    for each in rule:
        name, value = str(each.get("name")), each.get("value")
        if each.tag == "list":
            found[name] = [item.get("value") for item in each]
        elif each.tag == "dict":
            found[name] = {str(pair[0].get("value")): pair[1].get("value") for pair in each}
        else:
            found[name] = value == "true" if each.tag == "boolean" else value
    return found


def test_every_macro_passes_what_every_target_has(targets: list[dict[str, Any]]) -> None:
    loader = Loader(REPOSITORY)
    files = [loader.load(REPOSITORY / f"rules/{name}.bzl").names for name in ("defs", "cc")]
    macros = {name for names in files for name, value in names.items() if isinstance(value, FunctionType)}
    assert macros == MACROS.keys()
    named = {name + suffix for name, (_, suffixes) in MACROS.items() for suffix in suffixes}
    private = {"visibility": ["//visibility:private"], "tags": ["manual", "team"]}
    assert named <= {target["name"] for target in targets}
    for target in targets:
        expected = COMMON if target["name"] in named else COMMON | private
        if target["class"] in ("filegroup", "test_suite"):
            expected = {name: value for name, value in expected.items() if name not in NOT_OF_SUITES}
        given = {name: target.get(name) for name in expected}
        assert given | {"tags": sorted(target["tags"])} == expected, target["name"]
