"""The Starlark files: their documentation has an example for each rule, and they check what a target says."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etbuild.errors import InputError
from etbuild.plan.expectations import INPUTS
from etkit.building import checkpoints
from etkit.registry.oci import reference
from tools.reference.rules import TOPICS
from tools.reference.starlark import Loader

from ..starlark_files import REPOSITORY, bzl_files, examples


def test_no_file_that_users_load_needs_what_bazel_9_has_no_longer() -> None:
    """Rules of languages, and their providers. The generated file of host_repository names what there is."""
    gone = re.compile(r"(cc|java|objc|proto|py|sh)_(binary|import|library|test)|cc_common|CcInfo|JavaInfo|PyInfo")
    builds = [f"{package}/BUILD" for package in ("rules", "rules/private", "toolchain")]
    for path in (*bzl_files(), *builds):
        named = list(ast.walk(ast.parse((REPOSITORY / path).read_text("utf-8"))))
        names = [node.id for node in named if isinstance(node, ast.Name)]
        names += [node.attr for node in named if isinstance(node, ast.Attribute)]
        assert [name for name in names if gone.fullmatch(name)] == [], path


def test_defs_is_the_sum_of_the_topics() -> None:
    loader = Loader(REPOSITORY)
    known = {name for path in TOPICS for name in loader.load(REPOSITORY / "rules" / path).names}
    names = loader.load(REPOSITORY / "rules/defs.bzl").names
    assert {name for name in names if name.startswith("executorch_")} == known


@pytest.mark.parametrize("path", TOPICS)
def test_each_public_rule_has_an_example_with_its_load_line(path: str) -> None:
    found = examples().values()
    for name in Loader(REPOSITORY).load(REPOSITORY / "rules" / path).names:
        load = re.compile(rf'load\(\s*"@rules_executorch//rules:defs.bzl",[^)]*"{name}"')
        assert any(load.search(example) and f"{name}(" in example for example in found), name


def test_the_rules_reserve_what_the_driver_advises() -> None:
    names = Loader(REPOSITORY).load(REPOSITORY / "rules/private/driver.bzl").names
    assert names["_RESERVES"].keys() == names["MEMORY"].keys()
    for name, reserves in names["_RESERVES"].items():
        assert reserves("linux", 3) == {"cpu": 1, "memory": names["MEMORY"][name]}


def test_the_packages_of_a_model_are_looked_for_in_the_toolchain_that_imports_it() -> None:
    """Each group of actions may run on a platform of its own, with another toolchain."""
    loader = Loader(REPOSITORY)
    toolchain_of = loader.load(REPOSITORY / "rules/private/driver.bzl").names["toolchain_of"]
    kind = loader.load(REPOSITORY / "toolchain/toolchain.bzl").names["TOOLCHAIN_TYPE"]

    def chosen(verb: str | None, constraints: list[str]) -> Any:
        toolchains = {group: {kind: group} for group in ("default", "plan", "export")}
        groups = {group: SimpleNamespace(toolchains=toolchains[group]) for group in ("plan", "export")}
        attr = SimpleNamespace(exec_compatible_with=constraints)
        return toolchain_of(SimpleNamespace(attr=attr, exec_groups=groups, toolchains=toolchains["default"]), verb)

    assert [chosen(verb, []) for verb in ("export", "plan", "page", None)] == ["export", "plan", "default", "default"]
    assert chosen("export", ["@platforms//os:linux"]) == "default"
    assert 'check_packages(ctx.label, inputs.installed, toolchain_of(ctx, "export"))' in (
        (REPOSITORY / "rules/private/program.bzl").read_text("utf-8")
    )


def test_only_some_backends_compile_without_weights() -> None:
    compiles_weights = (
        Loader(REPOSITORY).load(REPOSITORY / "rules/private/program_actions.bzl").names["compiles_weights"]
    )
    assert [compiles_weights(each) for each in ([], ["portable", "xnnpack"], ["xnnpack", "openvino"])] == [0, 0, 1]


@pytest.mark.parametrize(
    ("labels", "checkpoint_as", "wrong"),
    [
        (["a.safetensors", "b.pt", ":target"], "net.safetensors", None),
        (["a.safetensors", "//run:b.gguf"], "net.safetensors", "//run:b.gguf"),
        ([":target"], "net.gguf", "net.gguf"),
    ],
)
def test_several_checkpoints_have_no_gguf_file(labels: list[str], checkpoint_as: str, wrong: str | None) -> None:
    names = Loader(REPOSITORY).load(REPOSITORY / "rules/private/common.bzl").names
    error = names["checkpoints_of_gguf_error"](labels, checkpoint_as)
    assert error is None if wrong is None else f"'{wrong}' cannot be one of several checkpoints" in error


@pytest.mark.parametrize(
    ("file", "name", "fits"),
    [
        ("a.safetensors", "net.safetensors", True),
        ("a.pt", "net.pth", True),
        ("out", "net.safetensors", True),
        ("a.bin", "net.safetensors", True),
        ("a.gguf", "net.safetensors", False),
        ("a.gguf", "net.pt", False),
        ("a.pt", "net.safetensors", False),
    ],
)
def test_a_file_has_the_name_of_a_file_of_its_kind(file: str, name: str, fits: bool) -> None:
    names = Loader(REPOSITORY).load(REPOSITORY / "rules/private/common.bzl").names
    named = SimpleNamespace(name=name, file=SimpleNamespace(basename=file))
    inputs = SimpleNamespace(**{attribute: [named] if attribute == "weights" else [] for attribute in INPUTS})
    error = names["inputs_error"]([], inputs, ["weights"], lambda file: file.basename)
    assert (error is None) == fits
    assert fits or (error[0] == "weights_as" and f"'{name}' is the name of a file of" in error[1])


LABELS = [
    ["step_1.safetensors", "step 2.pth"],
    ["run/a/model.safetensors", "//run/b:model.safetensors", "@other//c:model.safetensors"],
    ["weights.safetensors.index.json"],
    ["//run:final", ":a.b.bin"],
]


@pytest.mark.parametrize("labels", LABELS)
def test_the_rules_and_the_command_line_name_checkpoints_alike(labels: list[str]) -> None:
    names = Loader(REPOSITORY).load(REPOSITORY / "rules/private/common.bzl").names
    found, error = names["checkpoint_names"](labels)
    assert error is None
    assert names["checkpoints_error"](found) is None
    paths = [Path(label.replace("@", "").replace("//", "/").replace(":", "/")) for label in labels]
    assert list(found) == list(checkpoints.by_name(paths))
    assert list(found.values()) == labels


@pytest.mark.parametrize("name", ["", "a.b", "-a", "a b", "ä", "export", "template"])
def test_other_texts_do_not_name_checkpoints(name: str) -> None:
    names = Loader(REPOSITORY).load(REPOSITORY / "rules/private/common.bzl").names
    assert f"'{name}'" in names["checkpoints_error"]([name])
    assert "both be called 'a'" in names["checkpoint_names"](["a.pt", "b/a.bin"])[1]


class Refused(Exception):
    """What `fail` of Starlark ends a macro with."""


def refusal(file: str, macro: str, **attributes: Any) -> str:
    """Calls a macro with Starlark's `type` and `fail`, and returns the attribute and the message that it ends with."""

    def fail(message: str, attr: str) -> None:
        raise Refused(f"{attr}: {message}")

    function = Loader(REPOSITORY).load(REPOSITORY / file).names[macro]
    types = {"str": "string", "dict": "dict", "list": "list"}
    for each in (function, function.__globals__.get("_named", function)):
        each.__globals__.update(fail=fail, type=lambda value: types[type(value).__name__])
    with pytest.raises(Refused) as refused:
        function(name="net", manifest="net.yaml", **attributes)
    return str(refused.value)


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"ios": "x"}, "variants: `ios`: write a dictionary of the attributes that differ, or {}"),
        ({"ios": {"name": "x"}}, "variants: `ios`: leave out `name`, which all variants have"),
        (["ios"], "variants: write a dictionary of the variants' names to the attributes that differ"),
        ({"": {}}, "variants: '' is not a name"),
        ({"ios/arm": {}}, "variants: 'ios/arm' is not a name"),
    ],
)
def test_variants_that_are_no_attributes_are_refused(variants: Any, message: str) -> None:
    assert refusal("rules/private/programs.bzl", "executorch_programs", variants=variants).startswith(message)


def test_a_suite_of_no_list_is_refused() -> None:
    function = (
        Loader(REPOSITORY).load(REPOSITORY / "rules/private/test_suite.bzl").names["executorch_program_test_suite"]
    )

    def fail(message: str, attr: str) -> None:
        raise Refused(f"{attr}: {message}")

    function.__globals__.update(fail=fail, type=lambda value: {"str": "string", "list": "list"}[type(value).__name__])
    with pytest.raises(Refused, match="programs: write a list of labels"):
        function(name="tests", programs=":net")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"checkpoints": ["w.pt", ":w.pt"]}, "checkpoints: 'w.pt' and ':w.pt' are one file: keep one"),
        ({"checkpoints": ["w.pt", "//a:w.pt"]}, "checkpoints: 'w.pt' has the name of others, and no folder"),
        ({"checkpoints": "w.pt"}, "checkpoints: write a list of labels, or a dictionary of names to labels"),
        ({"checkpoints": ["w.pt"], "lowered": ":y"}, "lowered: executorch_checkpoints sets it for each program"),
    ],
)
def test_checkpoints_with_a_mistake_are_refused(attributes: Any, message: str) -> None:
    found = refusal("rules/private/checkpoints.bzl", "executorch_checkpoints", checkpoint_as="w.pt", **attributes)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("megabytes", "expected"),
    [
        (0, "default"),
        (1, "mem_2g"),
        (137, "mem_2g"),
        (138, "mem_4g"),
        (942, "mem_8g"),  # Qwen2.5-0.5B, which takes 5.1 GB
        (7817, "mem_32g"),
        (100000, "mem_32g"),
    ],
)
def test_known_sizes_of_weights_say_how_much_memory_to_reserve(megabytes: int, expected: str) -> None:
    names = Loader(REPOSITORY).load(REPOSITORY / "rules/private/common.bzl").names
    assert names["resource_set_for"](megabytes) == expected


def test_a_repository_rule_sees_the_sizes_of_files(tmp_path: Path) -> None:
    names = Loader(REPOSITORY).load(REPOSITORY / "rules/private/sized_files.bzl").names
    files = {"a b.bin": 1_000_000, "c.bin": 48_577, "total": 0}
    for name, size in files.items():
        (tmp_path / name).write_bytes(bytes(size))

    def execute(command: list[str]) -> SimpleNamespace:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return SimpleNamespace(return_code=done.returncode, stdout=done.stdout)

    context = SimpleNamespace(execute=execute)
    assert names["megabytes_of"](context, []) == 0
    assert names["megabytes_of"](context, ["a b.bin"]) == 1
    assert names["megabytes_of"](context, ["a b.bin", "c.bin"]) == 2
    assert names["megabytes_of"](context, ["missing.bin"]) == 0


@pytest.mark.parametrize(
    ("function", "text", "words"),
    [
        ("repository_error", "registry.example.com/models/net", None),
        ("repository_error", "[::1]:5000/a", None),
        ("repository_error", "models", "write REGISTRY/REPOSITORY"),
        ("repository_error", "https://registry.example.com/net", "write REGISTRY/REPOSITORY"),
        ("repository_error", "registry.example.com/net:v1", "leave out what follows the repository"),
        ("repository_error", "registry.example.com/net@sha256:00", "leave out what follows the repository"),
        ("repository_error", "registry.example.com/Net", "lower-case letters"),
        ("repository_error", "registry.example.com/net/", "lower-case letters"),
        ("repository_error", "registry.example.com/" + "a" * 256, "lower-case letters"),
        ("tag_error", "v1.0-rc_1", None),
        ("tag_error", "{STABLE_GIT_COMMIT}", None),
        ("tag_error", "v-{A}.{B}", None),
        ("tag_error", "", "begins with none"),
        ("tag_error", ".v1", "begins with none"),
        ("tag_error", "a b", "begins with none"),
        ("tag_error", "a" * 129, "up to 128"),
        ("tag_error", "v{", "stands for a stamp value"),
        ("tag_error", "v{}", "stands for a stamp value"),
        ("tag_error", "v}", "begins with none"),
        ("tag_error", "{a{b}", "stands for a stamp value"),
    ],
)
def test_the_rules_know_the_names_of_a_registry(function: str, text: str, words: str | None) -> None:
    """They refuse what the driver refuses, whatever the stamp values are, and besides a tag after the repository."""
    error = Loader(REPOSITORY).load(REPOSITORY / "rules/private/registry_names.bzl").names[function](text)
    assert error is None if words is None else words in error
    try:
        if function == "tag_error":
            reference.tag(text, dict.fromkeys(("STABLE_GIT_COMMIT", "A", "B"), "x"))
        else:
            reference.parse(text)
    except InputError:
        assert error is not None
    else:
        assert error is None or "leave out" in error


def test_each_option_with_the_value_of_an_attribute_is_told_to_the_driver() -> None:
    """Its errors then name the attribute. Files are apart: a message names their paths."""
    for path in bzl_files():
        text = (REPOSITORY / path).read_text("utf-8")
        assert re.findall(r'"--[\w-]+=[^"]*"[^\n]*\bctx\.attr\.\w+', text) == [], path
    options = Loader(REPOSITORY).load(REPOSITORY / "rules/private/common.bzl").names["attribute_options"]
    assert options("remote_tags", "--tag", ["a", "b"]) == ["--rule-attribute=--tag=remote_tags", "--tag=a", "--tag=b"]
    assert options("max_bytes", "--max-bytes", []) == ["--rule-attribute=--max-bytes=max_bytes"]
