"""`etbuild targets` writes targets, updates what repeats the manifest, and leaves the rest of the file as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from etbuild.cli import main

MANIFEST = """\
schema: executorch-model/v1
name: net
model:
  factory: model:create
  weights: net.safetensors
defaults:
  partitioners: [xnnpack]
methods:
  decode: {example_inputs: [{shape: [1, 4]}]}
  prefill: {example_inputs: [{shape: [1, 4]}]}
named_data:
  body: {parameters: ["body.*"]}
"""
VARIANTS = """\
variants:
  android: {}
  int8:
    methods: {prefill: null}
    defaults: {quantize: {pt2e: {quantizers: [xnnpack], calibration: example_inputs}}}
"""
LOAD = 'load("@rules_executorch//rules:defs.bzl", "executorch_program")\n\n'
NEW = """\
executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
    methods = [
        "decode",
        "prefill",
    ],
    named_data = ["body"],
    plugins = [],
    weights = ["net.safetensors"],
)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a manifest, in a workspace of Bazel."""
    (tmp_path / "WORKSPACE").touch()
    directory = tmp_path / "pkg"
    directory.mkdir()
    (directory / "net.yaml").write_text(MANIFEST)
    (directory / "net.safetensors").touch()
    (directory / "model.py").write_text("def create(): pass\n")
    monkeypatch.chdir(directory)
    return directory


def generated(
    package: Path, before: str | None = None, *arguments: str, name: str = "BUILD", left: bool = False
) -> str:
    """Runs `etbuild targets`, which must agree with itself afterwards, except for what is left to the user. Returns the
    file."""
    file = package / name
    if before is not None:
        file.write_bytes(before.encode())
    assert main.main(["targets", *arguments]) == 0
    after = file.read_bytes()
    assert main.main(["targets", "--check", *arguments]) == (1 if left else 0)
    assert file.read_bytes() == after
    return after.decode()


@pytest.mark.parametrize("before", [None, "", "\n"])
def test_a_manifest_without_a_target_gets_one(package: Path, before: str | None) -> None:
    assert generated(package, before).lstrip() == LOAD + NEW


def test_a_new_target_follows_what_is_there(package: Path) -> None:
    before = '# Of the team.\n\nload("//tools:a.bzl", "a")\n\na(name = "x")  # no line end'
    assert generated(package, before) == (
        f'# Of the team.\n\nload("//tools:a.bzl", "a")\n{LOAD}a(name = "x")  # no line end\n\n' + NEW
    )


def test_the_first_load_comes_before_a_comment_of_a_statement(package: Path) -> None:
    after = generated(package, "# All of them.\nx = 1\n")
    assert after == f"{LOAD}# All of them.\nx = 1\n\n{NEW}"


def test_a_load_of_these_rules_is_extended(package: Path) -> None:
    load = 'load("@rules_executorch//rules:defs.bzl", "executorch_library")\n'
    after = generated(package, load)
    assert after.startswith('load("@rules_executorch//rules:defs.bzl", "executorch_library", "executorch_program")\n')


def test_a_target_that_agrees_is_left_byte_for_byte(package: Path) -> None:
    odd = LOAD + (
        "executorch_program(name='net',manifest=':net.yaml' , # odd\n"
        "\tmethods=[ 'prefill','decode' ],named_data = (['body']), weights=['net.safetensors',],)\n"
    )
    assert generated(package, odd) == odd


def test_comments_and_order_inside_a_list_are_kept(package: Path) -> None:
    before = (
        LOAD
        + """executorch_program(
    name = "net",
    manifest = "net.yaml",
    methods = [
        # prompts
        "prefill",  # many tokens
        "gone",  # was experimental
    ],
    named_data = [
        "body"  # no comma
    ],
    weights = ["net.safetensors"],  # trained on Monday
    visibility = ["//visibility:public"],
)
"""
    )
    assert generated(package, before) == before.replace(
        '        "gone",  # was experimental\n', '        "decode",\n'
    )  # the list was not sorted: a new item is the last one


def test_an_item_is_added_behind_one_without_a_comma(package: Path) -> None:
    text = MANIFEST.replace("named_data:\n", 'named_data:\n  head: {parameters: ["head.*"]}\n')
    (package / "net.yaml").write_text(text)
    before = LOAD + NEW.replace('named_data = ["body"]', 'named_data = [\n        "body"  # why\n    ]')
    after = generated(package, before)
    assert 'named_data = [\n        "body",  # why\n        "head"\n    ]' in after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Comments behind and below the last item, with and without a comma.
        ('"body"  # why', '"body",  # why\n        "head"'),
        ('"body",  # why', '"body",  # why\n        "head",'),
        ('"body"\n        # below', '"body",\n        "head"\n        # below'),
        ('"body"  # why\n        # below', '"body",  # why\n        "head"\n        # below'),
        ('"body"  # why\n        ,', '"body"  # why\n        ,\n        "head",'),
        ('"body"  # why, how', '"body",  # why, how\n        "head"'),
        ('"body"\n        # below, too', '"body",\n        "head"\n        # below, too'),
        ('"body",\n        ("old")  # old, too', '"body",\n        "head",'),
        ('"old",  # old\n        "body"  # why', '"body",  # why\n        "head"'),
        ('"body",  # why\n        "old"  # old', '"body",  # why\n        "head",'),
        # Items in parentheses.
        ('("body")', '("body"),\n        "head"'),
        ('("body"),  # why', '("body"),  # why\n        "head",'),
        ('(("body")),\n        ("old"),', '(("body")),\n        "head",'),
        ('("old"),\n        "body",', '"body",\n        "head",'),
        ('(  # why\n            "body"\n        ),', '(  # why\n            "body"\n        ),\n        "head",'),
        ('("bo" +\n         "dy"),', None),
        ('("bo"\n         "dy"),', '("bo"\n         "dy"),\n        "head",'),
    ],
)
def test_an_item_is_added_and_all_else_stays(package: Path, before: str, after: str | None) -> None:
    text = MANIFEST.replace("named_data:\n", 'named_data:\n  head: {parameters: ["head.*"]}\n')
    (package / "net.yaml").write_text(text)

    def file(items: str) -> str:
        return LOAD + NEW.replace('named_data = ["body"]', f"named_data = [\n        {items}\n    ]")

    assert generated(package, file(before)) == file(before if after is None else after)


@pytest.mark.parametrize("old", ["", '        "old",  # why\n', "        # none yet\n"])
def test_an_item_of_an_empty_list_has_its_own_line_if_the_bracket_has(package: Path, old: str) -> None:
    def file(lines: str) -> str:
        return LOAD + NEW.replace('named_data = ["body"]', f"named_data = [\n{lines}    ]")

    comment = old if "none" in old else ""
    assert generated(package, file(old)) == file(f'{comment}        "body",\n')


def test_entries_in_parentheses_are_kept(package: Path) -> None:
    (package / "net.yaml").write_text(MANIFEST + VARIANTS)
    call = NEW.replace("executorch_program", "executorch_programs")
    load = LOAD.replace("executorch_program", "executorch_programs")
    variants = '    variants = {\n        ("int8"): ({\n            ("data"): (["x"]),  # why\n            ("weights"): ([])  # none\n        }),\n    },\n'  # noqa: E501
    after = generated(package, load + call.replace("    weights", variants + "    weights"))
    assert (
        '            ("data"): (["x"]),  # why\n            "export": None,\n            "methods": ["decode"],\n'
        '            "plugins": ["quantize"],\n' in after
    )
    assert '            ("weights"): ([])  # none\n        }),\n' in after


def test_arguments_are_added_where_buildifier_puts_them(package: Path) -> None:
    before = (
        LOAD + 'executorch_program(\n    name = "net",  # the net\n    manifest = "net.yaml",\n    tags = ["a"],\n)\n'
    )
    assert generated(package, before) == LOAD + (
        'executorch_program(\n    name = "net",  # the net\n    manifest = "net.yaml",\n    named_data = ["body"],\n'
        '    tags = ["a"],\n    weights = ["net.safetensors"],\n)\n'
    )


def test_a_target_in_one_line_stays_in_one_line(package: Path) -> None:
    before = LOAD + 'executorch_program(name = "net", manifest = "net.yaml")\n'
    assert generated(package, before) == LOAD + (
        'executorch_program(name = "net", manifest = "net.yaml", named_data = ["body"], '
        'weights = ["net.safetensors"])\n'
    )


def test_an_argument_that_a_dictionary_may_have_is_not_added(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = LOAD + 'executorch_program(name = "net", manifest = "net.yaml", methods = ["old"], **COMMON)\n'
    assert generated(package, before) == before.replace('["old"]', '[\n    "decode",\n    "prefill",\n]')
    assert 'the target has no `named_data` itself; `**` may have it: ["body"]' in capsys.readouterr().err


def test_line_ends_and_byte_order_marks_are_kept(package: Path) -> None:
    before = "\ufeff" + (LOAD + NEW.replace('["body"]', "[]")).replace("\n", "\r\n")
    assert generated(package, before) == "\ufeff" + (LOAD + NEW).replace("\n", "\r\n")
    (package / "BUILD").write_bytes(b"")
    assert "\r" not in generated(package)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("named_data", 'select({"//:a": ["x"], "//conditions:default": []})'),
        ("methods", "METHODS"),
        ("methods", '["decode"] + MORE'),
        ("weights", 'glob(["*.safetensors"])'),
        ("weights", '[":trained"]'),
        ("weights", '["trained"]'),
        ("methods", "[]"),
        ("weights", '["//other:net.safetensors"]'),
    ],
)
def test_what_is_computed_or_decided_is_left_alone(package: Path, attribute: str, value: str) -> None:
    old = {"named_data": '["body"]', "weights": '["net.safetensors"]'}
    lines = {"named_data": old["named_data"], "weights": old["weights"], attribute: value}
    own = "".join(f"    {key} = {each},\n" for key, each in sorted(lines.items()))
    before = LOAD + f'executorch_program(\n    name = "net",\n    manifest = "net.yaml",\n{own})\n'
    assert generated(package, before) == before


def test_what_is_left_alone_is_told(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generated(package, LOAD + NEW.replace('["body"]', "TAGS").replace('"net.yaml"', '"net.yaml", variant = V'))
    assert "BUILD:6: cannot read `variant`: it is computed; the target is left alone" in capsys.readouterr().err
    generated(package, LOAD + NEW.replace('["body"]', "TAGS"))
    assert "BUILD:11: cannot read `named_data`: it is computed; it is left alone" in capsys.readouterr().err


def test_a_macro_is_a_target_and_is_left_alone(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (
        'load("//tools:ours.bzl", "our_program")\n\nour_program(name = "x", manifest = "net.yaml", methods = ["a"])\n'
    )
    assert generated(package, before) == before
    assert "BUILD:3: `our_program` is not a rule of rules_executorch" in capsys.readouterr().err


def test_a_loop_over_manifests_is_left_alone(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = LOAD + '[executorch_program(name = n, manifest = n + ".yaml") for n in ["net"]]\n'
    assert generated(package, before) == before
    assert "cannot read `manifest`: it is computed" in capsys.readouterr().err


def test_a_rule_can_be_loaded_under_another_name_and_from_elsewhere(package: Path) -> None:
    before = 'load("//tools:executorch.bzl", program = "executorch_program")\n\n' + NEW.replace(
        "executorch_program", "program"
    )
    assert generated(package, before.replace('["body"]', '["old"]')) == before


def test_several_targets_of_one_manifest_are_updated(package: Path) -> None:
    (package / "net.yaml").write_text(MANIFEST + VARIANTS)
    small = """
executorch_program(
    name = "small",
    manifest = "net.yaml",
    methods = ["prefill"],
    variant = "int8",
)
"""
    assert (
        generated(package, LOAD + NEW.replace('["body"]', '["old"]') + small)
        == LOAD
        + NEW
        + """
executorch_program(
    name = "small",
    data = ["net.safetensors"],
    manifest = "net.yaml",
    manifest_name = "net",
    methods = ["decode"],
    named_data = ["body"],
    variant = "int8",
)
"""
    )


def test_new_variants_of_a_manifest_get_what_differs(package: Path) -> None:
    (package / "net.yaml").write_text(MANIFEST + VARIANTS)
    after = generated(package)
    assert (
        """    variants = {
        "android": {},
        "int8": {
            "data": ["net.safetensors"],
            "export": None,
            "methods": ["decode"],
            "plugins": ["quantize"],
            "weights": [],
        },
    },
"""
        in after
    )


def test_variants_of_a_target_get_what_differs_and_no_more(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "net.yaml").write_text(MANIFEST + VARIANTS)
    call = NEW.replace("executorch_program", "executorch_programs")
    load = LOAD.replace("executorch_program", "executorch_programs")
    before = load + call.replace("    weights", '    variants = {"int8": {"weights": []}, "old": {}},\n    weights')
    after = generated(package, before, left=True)
    assert (
        '"int8": {\n        "export": None,\n        "methods": ["decode"],\n        "plugins": ["quantize"],\n'
        '        "weights": [],\n    }, "old": {}' in after
    )
    told = capsys.readouterr().err
    assert "the manifest has no variant `old`" in told
    assert "the variant `int8` has other `data`: net.safetensors" in told


BACKENDS = 'backends = ["vulkan", "xnnpack"], '


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),  # all plug-ins, as before there was the attribute
        ('plugins = ["*"], ', 'plugins = ["*"], '),
        ("plugins = [], ", 'plugins = [\n    "quantize",\n    "vulkan",\n], '),
        ('plugins = ["lora", "vulkan"], ', 'plugins = ["quantize", "vulkan"], '),
        (f"{BACKENDS}plugins = [], ", f'{BACKENDS}plugins = ["quantize"], '),
        (f'{BACKENDS}plugins = ["quantize", "vulkan"], ', None),
        ("plugins = PLUGINS, ", "plugins = PLUGINS, "),
    ],
)
def test_a_target_names_the_plugins_that_its_backends_do_not_name(
    package: Path, before: str, after: str | None
) -> None:
    text = MANIFEST.replace("[xnnpack]", "[vulkan, xnnpack]\n  quantize: {torchao: [{config: 8da4w}]}")
    (package / "net.yaml").write_text(text)

    def file(own: str) -> str:
        rest = f'named_data = ["body"], {own}weights = ["net.safetensors"]'
        return LOAD + f'executorch_program(name = "net", manifest = "net.yaml", {rest})\n'

    assert generated(package, file(before)) == file(before if after is None else after)


def test_a_program_that_may_use_any_backend_names_all_plugins(package: Path) -> None:
    partitioner = "{backend: custom, options: {factory: model:make}}"
    (package / "net.yaml").write_text(MANIFEST.replace("[xnnpack]", f"[{partitioner}]"))
    assert 'plugins = ["*"],' in generated(package)


@pytest.mark.parametrize(
    ("old", "new", "plugin"),
    [
        ("[xnnpack]", "[xnnpack]\n  quantize: null", "quantize"),
        ("decode: {", "decode: {quantize: null, ", "quantize"),
        ("net.safetensors", "net.safetensors\n  adapters: {}", "lora"),
    ],
)
def test_a_target_names_the_plugins_that_only_planning_needs(package: Path, old: str, new: str, plugin: str) -> None:
    (package / "net.yaml").write_text(MANIFEST.replace(old, new))
    after = generated(package)
    assert f'plugins = ["{plugin}"],' in after
    assert generated(package, after.replace(f'"{plugin}"', "")) == after


def test_variants_name_the_plugins_that_differ(package: Path) -> None:
    lowered = {"gpu": "vulkan", "npu": "coreml", "same": "xnnpack"}
    variants = "".join(f"  {name}: {{defaults: {{partitioners: [{each}]}}}}\n" for name, each in lowered.items())
    (package / "net.yaml").write_text(f"{MANIFEST}variants:\n{variants}")
    call = NEW.replace("executorch_program", "executorch_programs").replace("    weights", "{}    weights")
    load = LOAD.replace("executorch_program", "executorch_programs")
    before = load + call.format('    variants = {"gpu": {}, "npu": {"backends": ["coreml"]}, "same": {}},\n')
    after = '    variants = {"gpu": {"plugins": ["vulkan"]}, "npu": {"backends": ["coreml"]}, "same": {}},\n'
    assert generated(package, before) == load + call.format(after)


def test_checkpoints_of_a_target_are_not_its_weights(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = """load("@rules_executorch//rules:defs.bzl", "executorch_checkpoints")

executorch_checkpoints(
    name = "net",
    srcs = ["model.py"],
    checkpoint_as = "net.safetensors",
    checkpoints = glob(["step_*.safetensors"]),
    manifest = "net.yaml",
    methods = ["decode"],
)
"""
    after = before.replace('["decode"]', '[\n        "decode",\n        "prefill",\n    ]')
    after = after.replace("    ],\n)", '    ],\n    named_data = ["body"],\n)')
    assert generated(package, before) == after
    (package / "BUILD").write_text(after.replace("net.safetensors", "other.safetensors"))
    assert main.main(["targets", "--check"]) == 1
    assert "BUILD:6: the manifest does not name the weights `other.safetensors`" in capsys.readouterr().err


def test_parameters_of_a_target_are_taken(package: Path) -> None:
    parameters = "parameters: {name: {type: string, default: net}}"
    text = MANIFEST.replace("name: net\n", f"name: {{parameter: name}}\n{parameters}\n", 1)
    (package / "net.yaml").write_text(text)
    before = LOAD + NEW.replace('"net",', '"other",').replace(
        "    weights", '    parameters = {"name": "other"},\n    weights'
    )
    assert generated(package, before) == before


def test_files_of_the_manifest_are_listed(package: Path) -> None:
    (package / "net.yaml").write_text(MANIFEST.replace("net.safetensors", "new.safetensors"))
    assert 'weights = ["new.safetensors"]' in generated(package, LOAD + NEW)
    (package.parent / "shared").mkdir()
    (package.parent / "shared/BUILD").touch()
    (package.parent / "shared/a.safetensors").touch()
    (package / "net.yaml").write_text(MANIFEST.replace("net.safetensors", "shared/a.safetensors"))
    assert 'weights = ["//shared:a.safetensors"]' in generated(package, LOAD + NEW)


def test_the_package_above_keeps_its_target(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package.parent)
    target = (
        NEW.replace('"net.yaml"', '"pkg/net.yaml"').replace('"net.saf', '"pkg/net.saf').replace('"model', '"pkg/model')
    )
    assert generated(package.parent, LOAD + target.replace('["body"]', "[]"), "pkg/net.yaml") == LOAD + target
    assert not (package / "BUILD").exists()


def test_a_manifest_can_be_a_link(package: Path) -> None:
    (package / "net.yaml").rename(package.parent / "elsewhere.yaml")
    (package / "net.yaml").symlink_to("../elsewhere.yaml")
    assert generated(package) == LOAD + NEW


def test_buck2_has_files_and_rules_of_its_own(package: Path) -> None:
    (package.parent / ".buckconfig").touch()
    after = generated(package, None, "--buck2", name="BUCK")
    assert after == LOAD.replace("rules:", "contrib/buck2:") + NEW
    assert not (package / "BUILD").exists()


def test_a_directory_of_two_build_systems_needs_a_choice(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package.parent / ".buckroot").touch()
    assert main.main(["targets"]) == 2
    assert "use --bazel or --buck2" in capsys.readouterr().err
    generated(package, None, "--bazel")


def test_a_check_writes_nothing_and_shows_the_edit(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "BUILD").write_text(LOAD + NEW.replace('["body"]', '["old"]'))
    before = (package / "BUILD").read_bytes()
    assert main.main(["targets", "--check"]) == 1
    out = capsys.readouterr().out
    assert '-    named_data = ["old"],\n+    named_data = ["body"],\n' in out
    assert (package / "BUILD").read_bytes() == before


def checked(package: Path, capsys: pytest.CaptureFixture[str], file: str) -> tuple[int, str, str]:
    """Checks a file. Returns the exit code, and what was printed."""
    (package / "BUILD").write_text(file)
    capsys.readouterr()
    code = main.main(["targets", "--check"])
    captured = capsys.readouterr()
    assert (package / "BUILD").read_text() == file
    return code, captured.out, captured.err


def test_a_check_tells_what_it_cannot_read_and_does_not_fail_for_it(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = checked(package, capsys, LOAD + NEW.replace('["body"]', "TAGS"))
    assert (code, out) == (0, "nothing to change in what can be read\n")
    assert "cannot read `named_data`: it is computed; it is left alone" in err


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ('select({"//a:b": ["old.safetensors"]})', "it is computed; it is left alone"),
        ('OTHERS + ["old.safetensors"]', "it is computed; it is left alone"),
        ('[":made"]', "only Bazel knows the files of `:made`; the manifest names net.safetensors"),
    ],
)
def test_a_check_tells_that_files_of_a_target_cannot_be_read(
    package: Path, capsys: pytest.CaptureFixture[str], weights: str, message: str
) -> None:
    code, out, err = checked(package, capsys, LOAD + NEW.replace('["net.safetensors"]', weights))
    assert (code, out) == (0, "nothing to change in what can be read\n")
    assert f"cannot read `weights`: {message}" in err


def test_a_check_fails_for_what_only_the_user_can_fix(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A variant that the manifest does not have: no edit of the file would be right."""
    (package / "net.yaml").write_text(MANIFEST + VARIANTS)
    file = LOAD + NEW.replace('"net.yaml",', '"net.yaml",\n    variant = "int4",')
    code, out, err = checked(package, capsys, file)
    assert (code, out) == (1, "")
    assert "BUILD:3: the manifest has no variant `int4`" in err
    assert main.main(["targets"]) == 0
    assert capsys.readouterr().out == ""


def test_a_check_tells_the_variants_that_no_target_builds(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "net.yaml").write_text(MANIFEST + VARIANTS)
    code, _, err = checked(package, capsys, LOAD + NEW)
    assert code == 0
    assert err.endswith("BUILD:3: no target builds the variants android, int8 of net.yaml\n")
    small = 'executorch_program(name = "s", manifest = "net.yaml", manifest_name = "net", {}, **COMMON)\n'
    for target, told in (
        ('variant = "int8"', "android"),
        ('variants = {"android": {}}', "int8"),
        ("variant = V", None),
    ):
        err = checked(package, capsys, LOAD + NEW + small.format(target))[2]
        assert ("no target builds" in err) == (told is not None)
        assert told is None or f"the variants {told} of net.yaml" in err


def test_all_broken_manifests_are_named(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "net.yaml").write_text(MANIFEST.replace("methods:", "method:"))
    for name, text in (("other", "schema: executorch-model/v1\nname: [\n"), ("right", MANIFEST)):
        (package / f"{name}.yaml").write_text(text.replace("name: net", "name: right"))
    (package.parent / "broken").mkdir()
    (package.parent / "broken/BUILD").write_text("x = (\n")
    (package.parent / "broken/third.yaml").write_text(MANIFEST)
    assert main.main(["targets", str(package.parent)]) == 2
    err = capsys.readouterr().err
    for place in ("net.yaml:8:1", "other.yaml:", "broken/BUILD:1:5"):
        assert err.count(place) == 1, err
    assert not (package / "BUILD").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"executorch_program(\n", "BUILD:1:19: '(' was never closed"),
        (b"x = \xff\n", "BUILD: not UTF-8: byte 5"),
        (b"x = 1\0\n", "BUILD"),
        (b"x = " + b"(" * 3000 + b")" * 3000, "BUILD"),
    ],
)
def test_a_broken_file_is_an_error_with_its_place(
    package: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    (package / "BUILD").write_bytes(content)
    assert main.main(["targets"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_broken_manifest_and_a_missing_one_are_errors(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "net.yaml").write_text(MANIFEST.replace("methods:", "method:"))
    assert main.main(["targets"]) == 2
    assert "net.yaml:8:1" in capsys.readouterr().err
    assert main.main(["targets", "no.yaml"]) == 2
    (package / "net.yaml").unlink()
    assert main.main(["targets"]) == 2
    assert "no manifest" in capsys.readouterr().err


def test_pytorch_is_not_imported(package: Path) -> None:
    code = "import sys; from etbuild.cli.main import main; sys.exit(main(['targets']) or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=package, check=False).returncode == 0
