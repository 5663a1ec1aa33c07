"""A plan contains everything that changes the result, and nothing else."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from etbuild import backends, plugins
from etbuild.cli.main import main
from etbuild.errors import InputError, Position
from etbuild.files import digests
from etbuild.manifest import validate
from etbuild.plan.expectations import check_expectations, check_inputs, check_name
from etbuild.plan.parts import BackendEntry, WeightsFile
from etbuild.plan.plan import Plan, from_manifest
from etbuild.plan.positions import positions_from_json, positions_to_json
from etbuild.plan.step_plans import ExportPlan, LowerPlan, MethodPlan, read_plan, weights_names

from .indexes import edited

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  decode:
    example_inputs: [{shape: [1, 1], dtype: int64}]
  prefill:
    example_inputs: [{shape: [1, 8], dtype: int64}]
    dynamic_shapes: [[null, {dim: seq, max: 32}]]
defaults: {partitioners: [xnnpack]}
"""

REORDERED = """\
# A comment.
defaults:
  partitioners:   # another one
    - backend: xnnpack
name: net
methods:
  prefill:
    dynamic_shapes: [[null, {max: 32, min: 1, dim: seq}]]
    example_inputs: [{fill: random, dtype: int64, shape: [1, 8]}]
    strict: false
  decode: {entry: decode, example_inputs: [{shape: [1, 1], dtype: int64}], dynamic_shapes: [null]}
model: {seed: 0, kwargs: {}, factory: "model:create"}
schema: "executorch-model/v1"
"""


def planned(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    return from_manifest(validate.load(path).data)


def test_errors_of_weights_are_at_their_key() -> None:
    one, other = WeightsFile.from_json("a.pt"), WeightsFile.from_json({"file": "b.pt", "ignore": ["x"]})
    assert weights_names((one,)) == {"a.pt": ("model", "weights")}
    assert weights_names((one, other))["b.pt"] == ("model", "weights", 1, "file")


def test_comments_order_and_defaults_leave_no_trace(tmp_path: Path) -> None:
    assert planned(tmp_path, MANIFEST) == planned(tmp_path, REORDERED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: net", "name: other"),
        ("model:create", "model:make"),
        ("[1, 8]", "[1, 9]"),
        ("max: 32", "max: 33"),
        ("[xnnpack]", "[]"),
        ("[xnnpack]", "{prefill: [xnnpack]}"),
        ("[xnnpack]}", "[xnnpack], strict: true}"),
        ("  decode:", "  decode2:"),
    ],
)
def test_every_other_edit_changes_the_plan(tmp_path: Path, old: str, new: str) -> None:
    assert planned(tmp_path, MANIFEST) != planned(tmp_path, MANIFEST.replace(old, new))


def test_partitioners_by_method_leave_out_the_others(tmp_path: Path) -> None:
    reduced = planned(tmp_path, MANIFEST.replace("[xnnpack]", "{prefill: [xnnpack]}"))
    assert reduced.methods["prefill"].partitioners == (BackendEntry("xnnpack", {}),)
    assert reduced.methods["decode"].partitioners == ()


@pytest.mark.parametrize(
    "line",
    [
        "executorch: {segment_alignment: 64, constant_tensor_alignment: 32, delegate_alignment: 64}",
        "executorch: {propagate_device_config: {skip_h2d_for_method_inputs: {prefill: true}}}",
        "constant_methods: {get_max: 3}",
    ],
)
def test_what_is_read_when_methods_become_a_program_lowers_no_method_again(tmp_path: Path, line: str) -> None:
    before, after = (planned(tmp_path, text).lower_plan for text in (MANIFEST, MANIFEST + line))
    assert before != after
    assert before.of_method("decode") == after.of_method("decode")


@pytest.mark.parametrize(
    "line",
    [
        "executorch: {memory_planning: {alignment: 64}}",
        "share_mutable_buffers: true",
        'passes: {executorch: ["passes:last"]}',
    ],
)
def test_what_changes_the_memory_plan_of_a_method_lowers_it_again(tmp_path: Path, line: str) -> None:
    before, after = (planned(tmp_path, text).lower_plan for text in (MANIFEST, MANIFEST + line))
    assert before.of_method("decode") != after.of_method("decode")


@pytest.mark.parametrize("line", ['edge_compile: {preserve_ops: ["aten::linear"]}', 'passes: {edge: ["passes:edge"]}'])
def test_what_lowering_reads_is_in_the_plan_of_a_method(tmp_path: Path, line: str) -> None:
    before, after = (planned(tmp_path, text).lower_plan for text in (MANIFEST, MANIFEST + line))
    assert before.of_method("decode") != after.of_method("decode")


def test_passes_are_in_the_part_that_runs_them(tmp_path: Path) -> None:
    before, aten, edge = (
        planned(tmp_path, text)
        for text in (MANIFEST, f'{MANIFEST}passes: {{aten: ["a:a"]}}', f'{MANIFEST}passes: {{edge: ["b:b"]}}')
    )
    assert before.lower_plan == aten.lower_plan
    assert aten.export_plan.callables == {"a:a": ("passes", "aten"), "model:create": ("model", "factory")}
    assert edge.export_plan.callables == {"b:b": (), "model:create": ("model", "factory")}
    assert edge.export_plan.lowering_callables == ("b:b",)
    assert aten.export_plan.lowering_callables == ()


def test_a_target_that_agrees_passes(tmp_path: Path) -> None:
    reduced = planned(tmp_path, MANIFEST)
    check_expectations(reduced, {"methods": ["prefill", "decode"], "backends": None, "named_data": []})
    check_name(reduced, "net")
    check_name(reduced, "net", "other_1-b.ios")


def test_a_target_that_differs_is_told_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        check_expectations(planned(tmp_path, MANIFEST), {"methods": ["decode"], "named_data": ["weights"]})
    assert 'write `methods = ["decode", "prefill"]` into the BUILD file' in str(error.value)
    assert "write `named_data = []` into the BUILD file" in str(error.value)


@pytest.mark.parametrize(
    ("partitioner", "backends", "listed", "edit"),
    [
        ("xnnpack", None, [], None),
        ("xnnpack", None, ["lora"], "[]"),
        ("vulkan", None, ["vulkan"], None),
        ("vulkan", None, [], '["vulkan"]'),
        ("vulkan", ["vulkan"], [], None),
        ("vulkan", ["vulkan"], ["vulkan"], None),
        ("vulkan", ["vulkan"], ["lora"], "[]"),
        ("{backend: custom, options: {factory: model:make}}", None, ["vulkan"], '["*"]'),
        ("{backend: custom, options: {factory: model:make}}", None, None, None),
    ],
)
def test_a_target_names_the_plugins_that_its_program_needs(
    tmp_path: Path, partitioner: str, backends: list[str] | None, listed: list[str] | None, edit: str | None
) -> None:
    plan = planned(tmp_path, MANIFEST.replace("xnnpack", partitioner))
    expected = {"backends": backends, "plugins": listed}
    if edit is None:
        check_expectations(plan, expected)
        return
    with pytest.raises(InputError) as error:
        check_expectations(plan, expected)
    assert f"write `plugins = {edit}` into the BUILD file (`etbuild targets` does it)" in str(error.value)


def present(monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
    """Of the plug-ins that targets name, only these have their code here, as in an action that plans."""
    is_here = property(lambda self: not self.is_named or self.name in names)
    monkeypatch.setattr(plugins.Plugin, "is_here", is_here)
    monkeypatch.setattr(backends, "_built_in", inspect.unwrap(backends._built_in))


METHOD = "{example_inputs: [{shape: [1]}]"
FACTORY = 'model: {factory: "model:create"}\n'
STANDING = {
    "null of a method": (f"{FACTORY}methods: {{forward: {METHOD}, quantize: null}}}}\n", "quantize"),
    "null of defaults": (f"{FACTORY}methods: {{forward: {METHOD}}}}}\ndefaults: {{quantize: null}}\n", "quantize"),
    "exported methods": (
        "methods: {forward: {program: net.pt2}}\ndefaults: {quantize: {torchao: [{config: int8}]}}\n",
        "pt2_files,quantize",
    ),
    "partitioners that the methods replace": (
        f"{FACTORY}methods: {{forward: {METHOD}, partitioners: [xnnpack]}}}}\ndefaults: {{partitioners: [vulkan]}}\n",
        "vulkan",
    ),
    "quantizers that the methods replace": (
        f"{FACTORY}methods: {{forward: {METHOD}, quantize: null}}}}\n"
        "defaults: {quantize: {pt2e: {quantizers: [vulkan], calibration: example_inputs}}}\n",
        "quantize,vulkan",
    ),
    "no adapters": (
        f'model: {{factory: "model:create", adapters: {{}}}}\nmethods: {{forward: {METHOD}}}}}\n',
        "lora",
    ),
}
"""Manifests with sections and backends that planning reads, each with the plug-ins of its target."""


@pytest.mark.parametrize("kind", STANDING)
def test_a_target_names_the_plugins_of_what_stands_in_its_manifest(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, needed = STANDING[kind]
    path = tmp_path / "model.yaml"
    path.write_text(f"schema: executorch-model/v1\nname: net\n{keys}")
    command = ["plan", str(path), "--plan", str(tmp_path / "plan.json")]
    present(monkeypatch, {*needed.split(",")})
    assert main([*command, f"--expect-plugins={needed}"]) == 0, capsys.readouterr().err
    assert main([*command, "--expect-plugins="]) == 2
    listed = ", ".join(f'"{name}"' for name in needed.split(","))
    assert f"write `plugins = [{listed}]` into the BUILD file" in capsys.readouterr().err
    present(monkeypatch, set())
    assert main([*command, "--expect-plugins="]) == 2
    told = capsys.readouterr().err
    assert any(f'add "{name}" to `plugins`' in told for name in needed.split(","))


@pytest.mark.parametrize(
    ("keys", "here", "plugin", "place"),
    [
        ("runner: executorch-llm/v1", "", "transformers", "5:9: runner"),
        ("recipe: qnn_fp16", "recipes", "qualcomm", "5:9: recipe"),
        ("recipe: {name: qnn_fp16}", "recipes", "qualcomm", "5:16: recipe.name"),
    ],
)
def test_a_plugin_that_is_missing_is_an_error_beside_others(
    keys: str, here: str, plugin: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.yaml"
    start = f"schema: executorch-model/v1\nname: net\n{FACTORY}methods: {{forward: {METHOD}}}}}\n{keys}\n"
    path.write_text(f"{start}constant_methods: {{forward: 1}}\n")
    present(monkeypatch, {here})
    with pytest.raises(InputError) as error:
        validate.load(path, "net.yaml")
    first, second = (str(problem) for problem in error.value.problems)
    assert first.startswith(f"net.yaml:{place}: the program needs the plug-in `{plugin}`")
    assert second.startswith("net.yaml:6:")


@pytest.mark.parametrize(
    ("expected", "program", "variant", "said", "edit"),
    [
        ("other", None, None, '`name` is "other"', '`name = "net"` or `manifest_name = "net"` into'),
        ("other", "de", None, '`manifest_name` is "other"', 'write `manifest_name = "net"` into'),
        ("other.ios", "de.ios", "ios", '`manifest_name` is "other"', 'write `manifest_name = "net"` into'),
        ("net", "sub/net", None, "`sub/net` cannot be the name of a program", "rename the target"),
        ("net", "a.b.c.d", None, "`a.b.c.d` cannot be the name of a program", "a dot before a variant"),
        ("net", "n+2", None, "`n+2` cannot be the name of a program", "letters, digits"),
    ],
)
def test_a_target_with_another_name_is_told_which_attribute_to_change(
    tmp_path: Path, expected: str, program: str | None, variant: str | None, said: str, edit: str
) -> None:
    plan = planned(tmp_path, MANIFEST)
    with pytest.raises(InputError) as error:
        check_name(plan.replace(name="net.ios") if variant else plan, expected, program, variant)
    assert said in str(error.value)
    assert edit in str(error.value)


FILES = (
    MANIFEST.replace(
        '"model:create"}', '"model:create", weights: w/model.safetensors.index.json, adapters: {math: lora/math}}'
    ).replace("  prefill:\n", "  prefill:\n    adapter: math\n")
    + "tokenizer: tok/tokenizer.json\ncustom_ops: {libraries: [libs/ops.so]}\n"
)
LISTED = {
    "data": ["libs/ops.so", "lora/math/adapter_config.json"],
    "adapters": ["lora/math/adapter_model.safetensors"],
    "weights": ["w/model.safetensors.index.json", "w/model-1.safetensors"],
    "tokenizer": ["tok/tokenizer.json"],
}


@pytest.mark.parametrize("other", [{}, {"weights": ["w/"]}, {"weights": [], "data": ["libs/", "w/", "lora/"]}])
def test_a_target_that_lists_what_the_manifest_names_passes(tmp_path: Path, other: dict[str, list[str]]) -> None:
    check_inputs(planned(tmp_path, FILES), {**LISTED, **other})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"data": []}, "`libs/ops.so`"),
        ({"data": [], "weights": [*LISTED["weights"], "libs/ops.so"]}, "under `weights`, but the export reads it"),
        ({"data": ["libs/ops.os", "lora/"]}, "the manifest names `libs/ops.so`, and the target lists `libs/ops.os`"),
        ({"weights": []}, "list it under `weights` of //net:net"),
        ({"weights": ["modle"]}, "if `modle` is the name of a target, it does not exist"),
        ({"weights": [*LISTED["weights"], "v/more.safetensors"]}, "the target lists the weights `v/more.safetensors`"),
        ({"adapters": []}, "list it under `adapters` of //net:net"),
        (
            {"adapters": ["lora/maths/adapter_model.safetensors"]},
            "the target lists `lora/maths/adapter_model",
        ),
        (
            {"adapters": [*LISTED["adapters"], "lora/code/adapter_model.safetensors"]},
            "the target lists the weights of an adapter `lora/code/adapter_model.safetensors`",
        ),
        (
            {"adapters": [], "weights": [*LISTED["weights"], *LISTED["adapters"]]},
            "under `weights`, but the step that writes the program reads it",
        ),
        (
            {"data": ["libs/ops.so"], "adapters": [*LISTED["adapters"], "lora/math/adapter_config.json"]},
            "under `adapters`, but the export reads it",
        ),
        ({"tokenizer": [], "data": ["libs/", "tok/tokenizer.json"]}, "under `data`, but the last step copies it"),
    ],
)
def test_files_in_another_attribute_are_told_where_they_belong(
    tmp_path: Path, other: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(InputError) as error:
        check_inputs(planned(tmp_path, FILES), {**LISTED, **other})
    assert message in str(error.value.in_rule("//net:net", "etbuild"))


FROM_ROOT = "a file in the manifest's folder is named by its path from there, any other by its path from the root"


@pytest.mark.parametrize(
    ("named", "listed", "hint"),
    [
        ("rank.safetensors", ["weights/rank.safetensors"], f"write `weights/rank.safetensors` here: {FROM_ROOT}"),
        ("weights/rank.safetensors", ["rank.safetensors"], f"write `rank.safetensors` here: {FROM_ROOT}"),
        ("ckpt", ["w/ckpt/a.safetensors", "w/ckpt/b.safetensors"], f"write `w/ckpt` here: {FROM_ROOT}"),
        ("ckpt", ["w/ckpt/"], f"write `w/ckpt` here: {FROM_ROOT}"),
        (
            "m.safetensors.index.json",
            ["w/m.safetensors.index.json", "w/m-1.safetensors"],
            f"write `w/m.safetensors.index.json` here: {FROM_ROOT}",
        ),
        (
            "rank.safetensors",
            ["rank.safetensor"],
            "if there is no file `rank.safetensor`, correct the target's `weights`",
        ),
    ],
)
def test_a_file_under_two_names_is_one_error(tmp_path: Path, named: str, listed: list[str], hint: str) -> None:
    """One error for what is missing and one for what is left over would propose opposite edits."""
    plan = planned(tmp_path, MANIFEST.replace('"model:create"}', f'"model:create", weights: {named}}}'))
    with pytest.raises(InputError) as error:
        check_inputs(plan, {"data": [], "adapters": [], "tokenizer": [], "weights": listed})
    [problem] = error.value.problems
    assert (problem.path, problem.hint and hint in problem.hint) == (("model", "weights"), True), problem


def test_canonical_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digests.canonical_json(float("nan"))


def test_positions_survive_json() -> None:
    positions = {(): Position("m.yaml", 1, 1), ("methods", "f", "example_inputs", 0): Position("m.yaml", 4, 7)}
    assert positions_from_json(json.loads(json.dumps(positions_to_json(positions)))) == positions


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"schema": "executorch-lower-plan/v1"}'])
def test_a_file_that_is_not_the_expected_plan_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="not a plan"):
        read_plan(path, ExportPlan)


def test_all_methods_are_not_lowered_by_the_plan_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decode.json"
    path.write_bytes(digests.canonical_json(planned(tmp_path, MANIFEST).lower_plan.of_method("decode").to_json()))
    assert read_plan(path, MethodPlan).methods.keys() == {"decode"}
    assert main(["lower", str(path), f"--export={tmp_path}", "-o", str(tmp_path / "out")]) == 2
    assert "not a plan: the key `constant_methods` is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("edge_compile",), {}, "edge_compile: the key `check_ir_validity` is missing"),
        (("executorch", "segment_alignment"), "128", "executorch.segment_alignment: expected a whole number"),
        (("memory_planning", "decode"), {}, "memory_planning.decode: the key `memory_planning_algo` is missing"),
        (("recipe",), {"name": "xnnpack_fp32", "kwargs": {}}, "recipe: the key `said` is missing"),
        (
            ("methods", "decode", "partitioners"),
            [{"backend": "custom", "options": {"factory": "x"}}],
            'partitioners[0].options.factory: "x" does not fit: `module:callable`',
        ),
    ],
)
def test_a_damaged_plan_is_an_error_in_words(tmp_path: Path, path: tuple[str, ...], value: Any, message: str) -> None:
    file = tmp_path / "lower.json"
    lower = planned(tmp_path, MANIFEST).lower_plan.to_json()
    file.write_bytes(digests.canonical_json(edited(lower, *path, value=value)))
    with pytest.raises(InputError, match=re.escape(message)):
        read_plan(file, LowerPlan)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("example_inputs", 0), {"dtype": "int64"}, "one of the keys `shape`, `factory`"),
        (("example_inputs", 0), {"shape": [1], "file": "a.pt"}, "`file` does not go with `shape`"),
        (("example_inputs", 0), {"factory": "a:a"}, "the key `kwargs` is missing"),
        (("dynamic_shapes", 0), [{"dim": "n", "max": 4}], "the key `min` is missing"),
        (("quantize",), {"pt2e": None, "torchao": [{"config": "int4"}]}, "the key `modules` is missing"),
    ],
)
def test_a_damaged_method_is_an_error_in_words(tmp_path: Path, path: tuple[Any, ...], value: Any, message: str) -> None:
    file = tmp_path / "export.json"
    export = planned(tmp_path, MANIFEST).export_plan.to_json()
    file.write_bytes(digests.canonical_json(edited(export, "methods", "decode", *path, value=value)))
    with pytest.raises(InputError, match=re.escape(message)):
        read_plan(file, ExportPlan)


METHODS = {"forward": {"example_inputs": [{"shape": [1, 4]}]}}
QUANTIZED = {"forward": {**METHODS["forward"], "quantize": {"torchao": [{"config": "8da4w"}]}}}
KEPT = {"forward": {**METHODS["forward"], "quantize": {"torchao": [{"config": "packed"}]}}}
HUGGINGFACE = {"huggingface": {"config": "config.json", "class": "AutoModel"}}
OF_VULKAN = {"forward": {**METHODS["forward"], "partitioners": ["vulkan"]}}
PACKED, QUANTIZE, TRANSFORMERS = {"etplugins.packed"}, {"etplugins.quantize"}, {"etplugins.transformers"}
PLUGINS_OF_PROGRAMS: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "none": ({}, set(), set()),
    "gguf": ({"model": {"factory": "model:create", "weights": "net.gguf"}}, PACKED, PACKED),
    "packed": ({"methods": KEPT}, PACKED | QUANTIZE, PACKED | QUANTIZE),
    "quantize": ({"methods": QUANTIZED}, QUANTIZE, QUANTIZE),
    "recipe": (
        {"recipe": {"name": "xnnpack_fp32"}},
        {*QUANTIZE, "etplugins.recipes"},
        {*QUANTIZE, "etplugins.recipes"},
    ),
    "weights": ({"model": {"factory": "model:create", "weights": "net.safetensors"}}, set(), set()),
    "backend": ({"methods": OF_VULKAN}, set(), {"etplugins.vulkan"}),
    "huggingface": ({"model": HUGGINGFACE}, TRANSFORMERS, TRANSFORMERS),
    "huggingface with weights": (
        {"model": {**HUGGINGFACE, "weights": "net.safetensors"}},
        PACKED | TRANSFORMERS,
        PACKED | TRANSFORMERS,
    ),
    "runner": ({"runner": "executorch-llm/v1"}, TRANSFORMERS, TRANSFORMERS),
}
"""For each kind of program, what it adds to a manifest, and the plug-ins that its export and its lowering use besides
those below."""
OF_ALL = {"etplugins.accelerate", "etplugins.assignments", "etplugins.edges", "etplugins.upstream"}
"""What each export, lowering and comparison uses."""


@pytest.mark.parametrize("kind", PLUGINS_OF_PROGRAMS)
def test_a_program_uses_the_plugins_that_it_needs_and_no_others(kind: str) -> None:
    keys, of_export, of_lowering = PLUGINS_OF_PROGRAMS[kind]
    plan = from_manifest({"name": "net", "model": {"factory": "model:create"}, "methods": METHODS, **keys})  # type: ignore[typeddict-item]
    assert plan.plugins_of("plan") == plan.plugins_of("report") == set(of_lowering)
    assert plan.plugins_of("export") == {*of_export, *OF_ALL}
    assert plan.plugins_of("lower") == {*of_lowering, *OF_ALL, "etplugins.templates"}
    assert plan.plugins_of("compare") == {*of_lowering, *OF_ALL, "etplugins.comparison"}
