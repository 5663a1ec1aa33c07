"""ExecuTorch's recipes as the start of a program, and the stages of an export in files."""

from __future__ import annotations

import fcntl
import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from etbuild.cli import main
from etbuild.files import locks
from etplugins.recipes import names as recipes

from .conftest import Build, Outcome
from .quantized_net import MODEL, error_of, module

RECIPE = """\
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig
from executorch.export import ExportRecipe, LoweringRecipe, StageType

def create(strict=False):
    def rename(name, program):
        print(f"pass of the recipe over {name}")
        return program
    return ExportRecipe(
        name="own",
        aten_transform_passes=[rename],
        lowering_recipe=LoweringRecipe(partitioners=[XnnpackPartitioner()]),
        executorch_backend_config=ExecutorchBackendConfig(segment_alignment=4096),
        strict=strict,
    )

def staged():
    return ExportRecipe(name="own", pipeline_stages=[StageType.TORCH_EXPORT])

def nothing():
    return None
"""


def manifest(recipe: str, more: str = "", method: str = "") -> str:
    return (
        f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create"}}\nrecipe: {recipe}\n{more}'
        f"methods:\n  forward: {{example_inputs: [{{shape: [2, 128]}}]{method}}}\n"
    )


@pytest.mark.parametrize("family", recipes.FAMILIES[:3], ids=lambda family: family.type)
def test_names_are_those_of_executorch(family: recipes.Family) -> None:
    """The recipes of the fourth family cannot be imported without Qualcomm's SDK."""
    if family.type == "ArmRecipeType":
        pytest.importorskip("tosa_serializer", reason="needs the extra `ethos-u`")
    kinds = getattr(importlib.import_module(family.module), family.type)
    assert sorted(family.names) == sorted(kind.value for kind in kinds)


@pytest.mark.parametrize(
    ("recipe", "tolerance"),
    [
        ("xnnpack_fp32", 1e-5),
        ("xnnpack_pt2e_int8_dynamic_per_channel", 0.03),
        ("{name: xnnpack_torchao_int8da_int4w_per_tensor, kwargs: {group_size: 64}}", 0.15),
    ],
)
def test_recipe(recipe: str, tolerance: float, build: Build, tmp_path: Path) -> None:
    made = build(manifest(recipe), model=MODEL)
    assert made.code == 0, made.err
    assert tolerance / 100 < error_of(made, tmp_path) < tolerance
    assert list(made.json("net.report.json")["methods"]["forward"]["operators"]["delegated"]) == ["XnnpackBackend"]


WEIGHTS_TOO = """\
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.export import AOQuantizationConfig, ExportRecipe, LoweringRecipe, QuantizationRecipe
import torch
from torchao.quantization import Int8DynamicActivationIntxWeightConfig

def create():
    quantizer = XNNPACKQuantizer().set_operator_type(torch.ops.aten.conv1d.default, get_symmetric_quantization_config())
    weights = AOQuantizationConfig(Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4))
    return ExportRecipe(
        quantization_recipe=QuantizationRecipe([quantizer], ao_quantization_configs=[weights]),
        lowering_recipe=LoweringRecipe([XnnpackPartitioner()]),
    )
"""


def test_a_calibration_of_the_manifest_leaves_the_weights_to_the_recipe(build: Build) -> None:
    text = manifest('"own:create"', "", ", quantize: {pt2e: {calibration: example_inputs}}")
    convolved = "return self.head(torch.nn.functional.conv1d(self.body(x)[:, None], torch.ones(1, 1, 1))[:, 0])"
    made = build(text, model=MODEL.replace("return self.head(self.body(x))", convolved), own=WEIGHTS_TOO)
    assert made.code == 0, made.err
    operators = made.json("net.report.json")["methods"]["forward"]["operators"]["delegated"]["XnnpackBackend"]
    assert any("dequantize_affine" in name for name in operators), operators


def test_manifest_overrides_a_recipe(build: Build, tmp_path: Path) -> None:
    text = manifest("xnnpack_pt2e_int8_dynamic_per_channel", method=", quantize: null, partitioners: [portable]")
    made = build(text, model=MODEL)
    assert made.code == 0, made.err
    assert error_of(made, tmp_path) < 1e-5
    assert made.json("net.report.json")["methods"]["forward"]["operators"]["delegated"] == {}


def test_calibration_of_a_recipe(build: Build, tmp_path: Path) -> None:
    calibration = 'defaults: {quantize: {pt2e: {calibration: {factory: "model:batches"}}}}\n'
    made = build(manifest("xnnpack_pt2e_int8_static_per_channel", calibration), model=MODEL)
    assert made.code == 0, made.err
    assert 1e-4 < error_of(made, tmp_path) < 0.03


@pytest.mark.parametrize(
    ("recipe", "backend", "needs"),
    [
        ("ios-arm64-coreml-fp16", "CoreMLBackend", None),
        ("coreml_torchao_int8_weight_only_per_channel", "CoreMLBackend", None),
        ("arm_tosa_fp", "TOSABackend", "tosa_serializer"),
    ],
)
def test_recipe_that_does_not_run_here(recipe: str, backend: str, needs: str | None, build: Build) -> None:
    if needs is not None:
        pytest.importorskip(needs)
    made = build(manifest(recipe), model=MODEL)
    assert made.code == 0, made.err
    assert backend in made.json("net.report.json")["methods"]["forward"]["operators"]["delegated"]


def test_recipe_of_the_sources_with_its_passes_and_configuration(build: Build) -> None:
    made = build(manifest('"recipe:create"'), model=MODEL, recipe=RECIPE)
    assert made.code == 0, made.err
    assert "pass of the recipe over forward" in made.err
    aligned = build(manifest('"recipe:create"', "executorch: {segment_alignment: 128}\n"), model=MODEL, recipe=RECIPE)
    assert len(aligned.read("net.pte")) < len(made.read("net.pte"))  # the manifest overrides the recipe


def test_memory_planning_of_a_method_overrides_a_recipe(build: Build) -> None:
    recipe = RECIPE.replace("segment_alignment=4096", "memory_planning_pass=MemoryPlanningPass(alignment=32)")
    recipe = recipe.replace("import ExecutorchBackendConfig", "import ExecutorchBackendConfig, MemoryPlanningPass")
    recipe = recipe.replace(
        "from executorch.exir import",
        "from executorch.exir.passes import MemoryPlanningPass\nfrom executorch.exir import",
    ).replace(", MemoryPlanningPass\n", "\n")
    memory = ", memory_planning: {alloc_graph_input: false, alloc_graph_output: false}"
    made = build(manifest('"recipe:create"', method=memory), model=MODEL, recipe=recipe)
    assert made.code == 0, made.err
    left = build(manifest('"recipe:create"'), model=MODEL, recipe=recipe)

    def memory_of(outcome: Outcome) -> int:
        return sum(outcome.json("net.report.json")["methods"]["forward"]["memory"])

    assert memory_of(made) < memory_of(left)


QUANTIZING = """\
import sys
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.export import ExportRecipe, LoweringRecipe, QuantizationRecipe

def say(what, size=2):
    def call(*arguments):
        print(what, file=sys.stderr)
        return arguments[0] if arguments else [(torch.ones(size, 128),)]
    return call

train = say("manifest trains")
post_convert = say("pass of the manifest")

def create(qat=False, size=2, **more):
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_qat=qat))
    return ExportRecipe(
        quantization_recipe=QuantizationRecipe(
            [quantizer],
            is_qat=qat,
            calibration_inputs_fn=say("recipe calibrates", size),
            post_convert_passes=[say("pass of the recipe")],
            **more,
        ),
        lowering_recipe=LoweringRecipe([XnnpackPartitioner()]),
    )

def trained():
    return create(qat=True, train_fn=say("recipe trains"))

def to_train():
    return create(qat=True)

def misfit():
    return create(size=5)

def batched():
    return create(size=5, dynamic_batch_size=True)

def in_other_forms():
    recipe = batched()
    recipe.quantization_recipe.calibration_inputs_fn = lambda: [torch.ones(5, 128), [torch.ones(5, 128)]]
    return recipe
"""
OWN_STEPS = ', quantize: {pt2e: {qat: "recipe:train", passes: {post_convert: ["recipe:post_convert"]}}}'


@pytest.mark.parametrize(
    ("recipe", "method", "said"),
    [
        ("create", "", ["recipe calibrates", "pass of the recipe"]),
        (
            "create",
            ', quantize: {pt2e: {passes: {post_convert: ["recipe:post_convert"]}}}',
            ["recipe calibrates", "pass of the recipe", "pass of the manifest"],
        ),
        ("create", ", quantize: {pt2e: {calibration: example_inputs}}", ["pass of the recipe"]),
        ("trained", "", ["recipe trains", "pass of the recipe"]),
        ("trained", OWN_STEPS, ["manifest trains", "pass of the recipe", "pass of the manifest"]),
        ("to_train", OWN_STEPS, ["manifest trains", "pass of the recipe", "pass of the manifest"]),
    ],
)
def test_a_recipe_and_the_manifest_quantize_together(recipe: str, method: str, said: list[str], build: Build) -> None:
    made = build(manifest(f'"recipe:{recipe}"', method=method), model=MODEL, recipe=QUANTIZING)
    assert made.code == 0, made.err
    steps = [line for line in made.err.splitlines() if line.startswith(("recipe", "manifest", "pass"))]
    assert steps == said


VIEWED = MODEL.replace("return self.head(self.body(x))", "return self.body(x).view(x.shape[0], 4, 32)")


@pytest.mark.parametrize("recipe", ["batched", "in_other_forms"])
def test_a_recipe_calibrates_on_batches_of_another_size(recipe: str, build: Build) -> None:
    made = build(manifest(f'"recipe:{recipe}"'), model=VIEWED, recipe=QUANTIZING)
    assert made.code == 0, made.err
    (value,) = made.json("net.report.json")["methods"]["forward"]["inputs"]
    assert value["shape"] == [2, 128]
    assert not value["dynamic"]


@pytest.mark.parametrize(
    ("recipe", "method", "message"),
    [
        ('"recipe:to_train"', "", "model.yaml:4:9: recipe: the recipe has `is_qat` but no `train_fn`"),
        (
            '"recipe:trained"',
            ", quantize: {pt2e: {calibration: example_inputs}}",
            "methods.forward.quantize.pt2e.calibration: the recipe trains the method, so `calibration` has no effect",
        ),
        (
            '"recipe:create"',
            OWN_STEPS,
            "methods.forward.quantize.pt2e.qat: the quantizers are for calibration, not for training",
        ),
        (
            "xnnpack_pt2e_int8_static_per_channel",
            OWN_STEPS,
            "methods.forward.quantize.pt2e.qat: the quantizers are for calibration, not for training",
        ),
        ('"recipe:misfit"', "", "model.yaml:4:9: recipe: batch 0, input [0] is float32 [5, 128], but the method takes"),
        ('"recipe:batched"', "", "model.yaml:4:9: recipe: `dynamic_batch_size` of the recipe does not suit"),
    ],
)
def test_a_recipe_that_does_not_quantize(recipe: str, method: str, message: str, build: Build) -> None:
    fixed = MODEL.replace("return self.head(self.body(x))", "return self.body(x).view(2, 4, 32)")
    made = build(manifest(recipe, method=method), model=fixed, recipe=QUANTIZING)
    assert made.code in (1, 2)
    assert message in made.err
    assert "Traceback" not in made.err


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("xnnpack_fp23", "did you mean `xnnpack_fp32`"),
        ("{name: xnnpack_fp32, kwargs: {bits: 8}}", "ignoring unexpected parameters: ['bits']"),
        ("{name: ios-arm64-coreml-fp32, kwargs: {bits: 8}}", "ignoring unexpected parameters: ['bits']"),
        ("{name: coreml_fp32, kwargs: {minimum_deployment_target: iOS99}}", "Core ML has no target `iOS99`"),
        ("qnn_fp16", "needs Qualcomm's"),
        ("android-arm64-snapdragon-fp16", "needs Qualcomm's"),
        ('"recipe:staged"', "sets `pipeline_stages`"),
        ('"recipe:nothing"', "returned NoneType, not an ExportRecipe"),
    ],
)
def test_refused(recipe: str, message: str, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    made = build(manifest(recipe), model=MODEL, recipe=RECIPE)
    assert made.code in (1, 2)
    assert message in made.err
    assert "Traceback" not in made.err


@pytest.mark.parametrize("recipe", ["qnn_fp16", "android-arm64-snapdragon-fp16"])
def test_recipe_of_qualcomm_gets_to_its_compiler(recipe: str, tmp_path: Path) -> None:
    """Runs in its own process, because ExecuTorch changes settings for Qualcomm's compiler, which is not installed
    here."""
    library = tmp_path / "sdk/lib/x86_64-linux-clang/libQnnHtp.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "net.yaml").write_text(manifest(f"{{name: {recipe}, kwargs: {{soc_model: SM8650}}}}"))
    command = [sys.executable, "-m", "etbuild", "build", str(tmp_path / "net.yaml"), "--no-cache", "-o", str(tmp_path)]
    environment = {**os.environ, "QNN_SDK_ROOT": str(tmp_path / "sdk")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "Failed to initialize QNN backend for kHtpBackend" in done.stderr
    assert "Traceback" not in done.stderr


STAGED = manifest("xnnpack_pt2e_int8_dynamic_per_channel").replace("forward: {", "features: {")


def test_stages(build: Build) -> None:
    made = build(STAGED, "--stop-after", "to_executorch", model=MODEL)
    assert made.code == 0, made.err
    assert made.files == [
        "1-source_transform", "2-quantize", "3-export", "4-to_edge", "5-lower", "6-to_executorch"
    ]  # fmt: skip

    def read(name: str) -> str:
        return made.read(name).decode()

    assert "Linear(in_features=128" in read("1-source_transform/features.txt")
    assert "dequantize_per_channel" in read("2-quantize/features.txt")
    assert "choose_qparams" in read("3-export/features.txt")
    assert "edge__ops" in read("4-to_edge/features.txt")
    assert "delegate 0: XnnpackBackend" in read("5-lower/features.txt")
    exported = torch.export.load(made.directory / "3-export/features.pt2")
    assert exported.module()(torch.zeros(2, 128)).shape == (2, 128)
    built = build(STAGED, model=MODEL)
    assert built.read("net.pte") == made.read("6-to_executorch/net.pte")


def test_stages_have_the_weights_of_their_file(build: Build) -> None:
    weights = {"net.safetensors": save({name: tensor / 2 for name, tensor in module().state_dict().items()})}
    text = manifest("xnnpack_fp32").replace('create"}', 'create", weights: net.safetensors}')
    made = build(text, "--stop-after", "to_executorch", model=MODEL, files=weights)
    assert made.code == 0, made.err
    assert build(text, model=MODEL, files=weights).read("net.pte") == made.read("6-to_executorch/net.pte")


def test_stages_end_where_the_user_says(build: Build) -> None:
    made = build(STAGED, "--stop-after", "export", model=MODEL)
    assert made.code == 0, made.err
    assert made.files == ["1-source_transform", "2-quantize", "3-export"]
    headings = [line for line in made.out.splitlines() if line.startswith("# ") and line.endswith(": features")]
    assert headings == ["# source_transform: features", "# quantize: features", "# export: features"]
    assert "# export: features\nExportedProgram:" in made.out
    assert made.out.rstrip().endswith("3-export/features.txt")


def test_two_commands_that_write_stages_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first stages of one model could be beside the last ones of another."""
    (tmp_path / "net.yaml").write_text(manifest("xnnpack_fp32"))
    asked = []

    def stop_after(last: str, plan: object, inputs: object, directory: Path, stage: object) -> dict[str, list[Path]]:
        asked.append(last)
        with pytest.raises(BlockingIOError), locks.locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB, locks.DIRECTORY):
            pass
        return {}

    monkeypatch.setattr("etkit.building.show_stages.stop_after", stop_after)
    words = ["build", str(tmp_path / "net.yaml"), "--stop-after", "export", "-o", str(tmp_path / "out")]
    assert (main.main(words), asked, list((tmp_path / "out").iterdir())) == (0, ["export"], [])


def test_stages_are_all_shown(build: Build) -> None:
    text = manifest("xnnpack_fp32")
    made = build(text, "--stop-after", "to_executorch", model=MODEL)
    assert made.code == 0, made.err
    assert "# quantize: no method is quantized by PT2E\n" in made.out
    shown = made.out[made.out.index("# to_executorch: net\n") :]
    assert "forward(float32[2, 128]) -> (float32[2, 32])\n  delegate XnnpackBackend: 1 call" in shown
    listed = json.loads(build(text, "--stop-after", "quantize", "--json", model=MODEL).out)
    assert [Path(path).name for path in listed] == ["forward.safetensors", "forward.txt"]


def test_a_stage_with_nothing_to_show_says_why(build: Build) -> None:
    saved = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(2),)), saved)
    text = "schema: executorch-model/v1\nname: net\nmethods: {forward: {program: net.pt2}}\n"
    made = build(text, "--stop-after", "export", files={"net.pt2": saved.getvalue()})
    assert made.code == 0, made.err
    assert "# source_transform: every method is a program that is exported already\n" in made.out
    assert "# quantize: no method is quantized by PT2E\n" in made.out


PASSES = """\
import torch

def unexportable(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        with graph_module.graph.inserting_before(node):
            reshaped = graph_module.graph.call_function(torch.ops.aten.reshape.default, (node.args[0], [3, 7]))
        node.replace_input_with(node.args[0], reshaped)
    graph_module.recompile()
    return graph_module

def without_relu(name, program):
    from executorch.exir.pass_base import ExportPass, PassResult

    class Pass(ExportPass):
        def call(self, graph_module):
            for node in graph_module.graph.nodes:
                if "relu" in str(node.target):
                    node.replace_all_uses_with(node.args[0])
            graph_module.graph.eliminate_dead_code()
            graph_module.recompile()
            return PassResult(graph_module, True)

    return [Pass()]
"""


def test_the_quantized_graph_is_there_though_it_cannot_be_exported(build: Build) -> None:
    steps = ', quantize: {pt2e: {passes: {post_convert: ["steps:unexportable"]}}}'
    text = manifest("xnnpack_pt2e_int8_static_per_channel", method=steps)
    made = build(text, "--stop-after", "quantize", model=MODEL, steps=PASSES)
    assert made.code == 0, made.err
    assert "torch.ops.aten.reshape.default" in made.read("2-quantize/forward.txt").decode()
    failed = build(text, "--stop-after", "export", model=MODEL, steps=PASSES)
    assert "methods.forward.quantize.pt2e: exporting the quantized method failed" in failed.err
    assert "2-quantize" in failed.files


def test_stage_of_the_edge_dialect_has_its_passes_and_the_configuration_of_the_recipe(build: Build) -> None:
    text = manifest('"recipe:create"', 'passes: {edge: ["steps:without_relu"]}\n')
    made = build(text, "--stop-after", "to_edge", model=MODEL, recipe=RECIPE, steps=PASSES)
    assert made.code == 0, made.err
    graph = made.read("4-to_edge/forward.txt").decode()
    assert "relu" in made.read("3-export/forward.txt").decode()
    assert "relu" not in graph
    assert "aten_t_copy_default" in graph or "aten_permute_copy_default" in graph
    config = "LoweringRecipe(edge_compile_config=EdgeCompileConfig(preserve_ops=[torch.ops.aten.linear.default]), "
    kept = RECIPE.replace("LoweringRecipe(", config).replace("import Exec", "import EdgeCompileConfig, Exec")
    made = build(text, "--stop-after", "to_edge", model=MODEL, recipe=f"import torch\n{kept}", steps=PASSES)
    assert made.code == 0, made.err
    assert "aten_linear_default" in made.read("4-to_edge/forward.txt").decode()


def test_what_the_edge_dialect_refuses_is_an_error(build: Build) -> None:
    model = MODEL.replace("return self.head", "self.count.add_(1)\n        return self.head").replace(
        "        self.embedding =", "        self.count = torch.zeros(1)\n        self.embedding ="
    )
    made = build(manifest("xnnpack_fp32"), "--stop-after", "to_executorch", model=model)
    assert made.code == 1
    assert "methods.forward: lowering forward failed" in made.err
    assert "Traceback" not in made.err
