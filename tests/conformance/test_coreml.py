"""Which methods become one Core ML model, what they share in it, and how errors say that they cannot become one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from etplugins.coreml import model_files
from tests.helpers.manifests import HEAD, net
from tests.integration.conftest import Build

from .conftest import Lower
from .coreml_models import NEW, OLD, coreml, models, specs
from .shared_layer import INPUT, MODEL, sharing, tail, two

TIED = net(
    "self.linear = torch.nn.Linear(64, 64)",
    prefill="return self.linear(self.linear(x).exp())",
    decode="return self.linear(self.linear(x).exp()) * 2",
)
LEAVE_EXP = "skip_ops_for_coreml_delegation: [aten.exp.default]"
APART = "multimethod_weight_sharing_strategy: disabled"
CUT = net(
    "self.linear = torch.nn.Linear(16, 16)",
    prefill="y = self.linear(x)\nreturn self.linear(y + y.argmax().float())",
    decode="return self.linear(x).relu()",
)


def test_partitions_are_paired_unless_an_option_disables_it(lower: Lower) -> None:
    refused, _ = lower(two(coreml(NEW, LEAVE_EXP)), MODEL)
    assert refused.code == 1
    assert "CoreMLBackend needs the same number of partitions in each method" in refused.err
    assert "would get 2 of `long`, 1 of `plain`, 1 of `short`" in refused.err
    assert "or write `multimethod_weight_sharing_strategy: disabled`. " in refused.err
    outcome, _ = lower(two(coreml(NEW, LEAVE_EXP, APART)), MODEL)
    assert sharing(outcome)["shared_bytes"] == 0 < sharing(outcome)["duplicate_bytes"]


@pytest.mark.parametrize("unpaired", ["decode", "prefill"])
def test_one_method_can_be_unpaired(lower: Lower, tmp_path: Path, unpaired: str) -> None:
    """For a method of any name: ExecuTorch itself checks only the first method."""
    entries = {
        name: coreml(NEW, APART, LEAVE_EXP) if name == unpaired else coreml(NEW) for name in ("prefill", "decode")
    }
    outcome, _ = lower(tail(entries["prefill"], entries["decode"]).replace("[2, 16]", "[2, 64]"), TIED)
    assert models(outcome, tmp_path) == [(9, ["main"])] * 3


def test_methods_that_keep_weights_differently_have_models_of_their_own(lower: Lower, tmp_path: Path) -> None:
    outcome, _ = lower(tail(coreml(NEW), coreml(NEW, "compute_precision: float32")), MODEL)
    assert models(outcome, tmp_path) == [(9, ["main"])] * 2
    assert sharing(outcome)["shared_bytes"] == 0 < sharing(outcome)["duplicate_bytes"]


def test_methods_for_systems_without_functions_have_models_that_run_there(lower: Lower, tmp_path: Path) -> None:
    assert models(lower(tail(coreml(OLD), coreml(OLD)), MODEL)[0], tmp_path) == [(8, ["main"])] * 2
    [(oldest, _), (same, _)] = models(lower(tail("[coreml]", "[coreml]"), MODEL)[0], tmp_path)
    assert oldest == same < 8
    assert models(lower(tail(coreml(NEW), coreml(NEW)), MODEL)[0], tmp_path) == [(9, ["decode", "prefill"])]


def test_two_models_have_two_copies(lower: Lower) -> None:
    """Each delegate has the named data of all delegates, and reads one model in it."""
    entry = coreml(NEW, LEAVE_EXP)
    outcome, _ = lower(tail(entry, entry).replace("[2, 16]", "[2, 64]"), TIED)
    found = sharing(outcome)
    assert found["shared_bytes"] == 0
    assert {each["weight"]: each["copies"] for each in found["duplicates"]} == {"linear.weight": 2, "linear.bias": 2}
    assert found["duplicate_bytes"] == pytest.approx((64 * 64 + 64) * 2, rel=0.02)


BRANCHES = CUT.replace("y.argmax().float()", "torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (y,))")


@pytest.mark.parametrize(
    ("partitioners", "model"),
    [
        pytest.param("[xnnpack, coreml]", MODEL.replace("linear(x).cos()", "linear(x).cumsum(1)"), id="delegate"),
        pytest.param("[coreml]", BRANCHES, id="control flow"),
    ],
)
def test_names_of_parts_of_the_program_stay(lower: Lower, partitioners: str, model: str) -> None:
    """Another backend's delegate, or a branch of control flow."""
    outcome, _ = lower(tail(partitioners, partitioners), model)
    assert outcome.code == 0, outcome.err
    delegates = outcome.json("net.report.json")["methods"]["decode"]["delegates"]
    assert delegates == dict.fromkeys(("CoreMLBackend", "XnnpackBackend")[: 2 if "xnnpack" in partitioners else 1], 1)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("skip_ops_for_coreml_delegation: [aten.exp.Default]", "there is no `aten.exp.Default`"),
        ("pass_names: [common::const_eliminatoin]", "there is no `common::const_eliminatoin`"),
    ],
)
def test_a_name_that_there_is_not_is_refused(lower: Lower, option: str, told: str) -> None:
    outcome, _ = lower(tail("[]", coreml(option)), MODEL)
    name = option.partition(":")[0]
    assert "model.yaml:6:" in outcome.err
    assert f": methods.decode.partitioners[0].options.{name}[0]: {told}\n    did you mean `" in outcome.err
    assert outcome.code == 2


TURNED = net(
    "self.linear = torch.nn.Linear(64, 64)",
    "self.other = torch.nn.Linear(64, 32)",
    prefill="return self.linear(x) + self.other(x).sum()",
    decode="return x @ self.linear.weight + self.other(x).sum()",
)


def test_a_model_that_holds_a_weight_twice_has_two_copies(lower: Lower) -> None:
    """Core ML stores the weight of a linear layer in addition to the same weight without transposition."""
    outcome, _ = lower(tail(coreml(NEW), coreml(NEW)).replace("[2, 16]", "[2, 64]"), TURNED)
    found = sharing(outcome)
    assert [each["weight"] for each in found["duplicates"]] == ["linear.weight"]
    assert found["shared_bytes"] == 64 * 32 * 4 + 32 * 4
    assert found["duplicate_bytes"] == pytest.approx(64 * 64 * 2, rel=0.02)  # Core ML stores them in half precision


TWO_SHAPES = "enumerated_shapes: {x: [[1, 16], [4, 16]]}"


@pytest.mark.parametrize(
    ("kind", "bits"), [("FLOAT16", 16), ("BFLOAT16", 16), ("FLOAT8E4M3FN", 8), ("INT4", 4), ("UINT1", 1), ("BOOL", 8)]
)
def test_types_have_the_size_in_their_name(kind: str, bits: int) -> None:
    assert model_files.bits(kind) == bits


def dynamic(*options: str) -> str:
    entry = f"dynamic_shapes: [[{{dim: n, max: 4}}, null]], partitioners: {coreml(*options, 'lower_full_graph: true')}"
    return f"methods:\n  prefill: {{{INPUT}, {entry}}}\n  decode: {{{INPUT}, {entry}}}\n"


@pytest.mark.parametrize("target", [NEW, OLD])
def test_inputs_have_the_shapes_that_are_written_out(lower: Lower, tmp_path: Path, target: str) -> None:
    outcome, _ = lower(dynamic(target, TWO_SHAPES), MODEL)
    found = specs(outcome, tmp_path)
    assert len(found) == (1 if target == NEW else 2)
    for function in [each for spec in found for each in spec.description.functions or [spec.description]]:
        shapes = function.input[0].type.multiArrayType.enumeratedShapes.shapes
        assert sorted(list(each.shape) for each in shapes) == [[1, 16], [4, 16]]


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ("{y: [[1, 16], [4, 16]]}", "the method has no input `y` of dynamic shape"),
        ("{x: [[1, 16], [5, 16]]}", "In x, the shape enumeration [5, 16] violates the upper range-constraint"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(lower: Lower, shapes: str, told: str) -> None:
    outcome, _ = lower(dynamic(f"enumerated_shapes: {shapes}"), MODEL)
    assert outcome.code == 2
    assert f".partitioners[0].options.enumerated_shapes: {told}" in outcome.err


@pytest.mark.skipif(sys.platform == "darwin", reason="Apple's compiler is here")
def test_what_needs_macos_is_said_before_anything_is_exported(lower: Lower) -> None:
    outcome, _ = lower(tail("[]", coreml("model_type: compiled_model")), "not Python")
    assert (outcome.code, outcome.files) == (2, [])
    told = "methods.decode.partitioners[0]: the backend `coreml` needs macOS for `model_type: compiled_model`"
    assert f"{told}\n    lower this program on a Mac" in outcome.err


def test_partitions_of_a_recipe_are_compared(build: Build, tmp_path: Path) -> None:
    methods = f"methods:\n  prefill: {{{INPUT}}}\n  decode: {{{INPUT}}}\n"
    assert len(models(build(f"{HEAD}recipe: ios-arm64-coreml-fp16\n{methods}", model=CUT), tmp_path)) == 3
    recipe = "recipe: {name: ios-arm64-coreml-fp16, kwargs: {minimum_deployment_target: iOS18}}\n"
    refused = build(HEAD + recipe + methods, model=CUT)
    assert refused.code == 1
    assert ": recipe: CoreMLBackend needs the same number of partitions in each method" in refused.err
    assert "`prefill` has `aten::argmax`, which it leaves out" in refused.err
    assert "or write `partitioners` instead of the recipe's" in refused.err


OLD_FOR_ONE = """\
import coremltools
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
from executorch.export import ExportRecipe, LoweringRecipe

def partitioners(target):
    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=target)
    return [CoreMLPartitioner(compile_specs=specs)]

def create():
    targets = {"prefill": coremltools.target.iOS18, "decode": coremltools.target.iOS17}
    made = {method: partitioners(target) for method, target in targets.items()}
    return ExportRecipe(name="own", lowering_recipe=LoweringRecipe(partitioners=made))
"""


def test_partitions_of_a_recipe_are_not_compared_where_one_method_stays_apart(build: Build, tmp_path: Path) -> None:
    manifest = f'{HEAD}recipe: "recipe:create"\nmethods:\n  prefill: {{{INPUT}}}\n  decode: {{{INPUT}}}\n'
    outcome = build(manifest, model=CUT, recipe=OLD_FOR_ONE)
    assert models(outcome, tmp_path) == [(8, ["main"]), (9, ["main"]), (9, ["main"])]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"minimum_deployment_target": "iOS18", "compute_unit": "cpu_only"},
        {
            "minimum_deployment_target": "iOS17",
            "compute_precision": "float32",
            "pass_names": ["common::dead_code_elimination"],
        },
        {"minimum_deployment_target": "iOS18", "multimethod_weight_sharing_strategy": "disabled"},
        {"op_linear_quantizer_config": {"mode": "linear_symmetric", "dtype": "int8"}},
    ],
)
def test_a_partitioner_is_together_with_what_its_options_say(options: dict[str, Any]) -> None:
    """Compares the partitioner of a recipe with the options of a manifest."""
    from etbuild.backends import BACKENDS, Context

    backend = BACKENDS["coreml"]
    made = backend.create_partitioner(options, Context("forward", lambda reference: None, None))
    assert backend.recognizes(made)
    assert backend.grouping_key_of(made) == backend.grouping_key(options)
    assert backend.pairs_partitions_of(made) == backend.pairs_partitions(options)
    assert not backend.recognizes(object())
