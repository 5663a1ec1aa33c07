"""Every example, built by the driver, run by ExecuTorch's runtime, and compared with eager PyTorch."""

import json
import operator
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from make_weights import CALIBRATIONS, EXAMPLES, FILES, contents, create, uniform

from tests.conftest import MANIFESTS
from tests.helpers.commands import build
from tests.helpers.random_tokens import tokens
from tests.helpers.runtime import Call, run


def eager(name: str, sessions: list[list[Call]]) -> list[list[list[Tensor]]]:
    """Returns the outputs of each call in eager PyTorch."""
    path = MANIFESTS[name]
    manifest = yaml.safe_load(path.read_text())
    files = manifest["model"].get("weights", [])
    results: list[list[list[Tensor]]] = []
    for calls in sessions:
        module = create(path).eval()
        if files:
            files = [files] if isinstance(files, str) else files
            module.load_state_dict({key: x for file in files for key, x in load_file(path.parent / file).items()})
        results.append([])
        with torch.no_grad():
            for method, inputs in calls:
                entry = operator.attrgetter(manifest["methods"][method].get("entry", method))(module)
                results[-1].append([entry(*inputs)])
    return results


def assert_as_eager(
    name: str, program: Path, sessions: list[list[Call]], scratch: Path, tolerance: float = 1e-4
) -> list[list[list[Tensor]]]:
    actual = run(program, sessions, scratch)
    expected = eager(name, sessions)
    assert all(output.isfinite().all() and output.std() > 0 for calls in expected for (output,) in calls)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    return actual


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.quick
def test_mlp(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    sessions = [[("forward", [floats(1, 16, seed=seed)])] for seed in range(3)]
    assert_as_eager("mlp", cli_built("mlp"), sessions, tmp_path)


def test_denoiser(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    sessions = [[("forward", [floats(1, 4096, seed=seed)])] for seed in range(3)]
    assert_as_eager("denoiser", cli_built("denoiser"), sessions, tmp_path)


@pytest.mark.parametrize("method", ["features", "classify"])
@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("vision", 1e-4),
        ("vision.openvino", 3e-2),  # bf16 if the processor can
    ],
)
def test_vision(name: str, tolerance: float, method: str, cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    sessions = [[(method, [floats(1, 3, 64, 64, seed=seed)])] for seed in range(3)]
    assert_as_eager(name, cli_built(name), sessions, tmp_path, tolerance)


def test_tiny_lm_prefill_of_the_smallest_example_and_largest_length(
    cli_built: Callable[[str], Path], tmp_path: Path
) -> None:
    sessions = [[("prefill", [tokens(length)])] for length in (1, 2, 16, 17, 128)]
    assert_as_eager("tiny_lm", cli_built("tiny_lm"), sessions, tmp_path)


def test_tiny_lm_prefill_twice_in_one_session(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    sessions = [[("prefill", [tokens(40)]), ("prefill", [tokens(7, seed=1)])]]
    assert_as_eager("tiny_lm", cli_built("tiny_lm"), sessions, tmp_path)


def test_tiny_lm_decode_step_by_step_gives_the_outputs_of_prefill(
    cli_built: Callable[[str], Path], tmp_path: Path
) -> None:
    prompt = tokens(12, seed=2)
    steps = [("decode", [prompt[:, i : i + 1], torch.tensor([i])]) for i in range(12)]
    stepwise, at_once = assert_as_eager("tiny_lm", cli_built("tiny_lm"), [steps, [("prefill", [prompt])]], tmp_path)
    torch.testing.assert_close(stepwise[-1], at_once[-1], rtol=1e-4, atol=1e-4)


def test_tiny_lm_decode_at_the_last_position(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    steps = [("decode", [tokens(1, seed=i), torch.tensor([i])]) for i in range(128)]
    assert_as_eager("tiny_lm", cli_built("tiny_lm"), [steps], tmp_path)


def test_tiny_lm_decode_continues_where_prefill_stopped(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    text = tokens(20, seed=3)
    steps = [("decode", [text[:, i : i + 1], torch.tensor([i])]) for i in range(12, 20)]
    after_prefill = [("prefill", [text[:, :12]]), *steps]
    continued, at_once = assert_as_eager(
        "tiny_lm", cli_built("tiny_lm"), [after_prefill, [("prefill", [text])]], tmp_path
    )
    torch.testing.assert_close(continued[-1], at_once[-1], rtol=1e-4, atol=1e-4)


def test_tiny_lm_answers_its_constants(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    constants = yaml.safe_load(MANIFESTS["tiny_lm"].read_text())["constant_methods"]
    answers = run(cli_built("tiny_lm"), [[(name, []) for name in constants]], tmp_path)[0]
    values = [[x.tolist() if isinstance(x, Tensor) else x for x in answer] for answer in answers]
    assert dict(zip(constants, values, strict=True)) == {
        name: value if isinstance(value, list) else [value] for name, value in constants.items()
    }


def test_encoder_of_the_smallest_example_and_largest_length(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    sessions = [[("encode", [floats(1, frames, 40)])] for frames in (4, 5, 64, 127, 128)]
    assert_as_eager("encoder_decoder", cli_built("encoder_decoder"), sessions, tmp_path)


def test_decoder_of_the_smallest_example_and_largest_lengths(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    sessions = [
        [("decode", [tokens(length, 128), floats(1, seen, 64)])]
        for length, seen in ((1, 2), (1, 64), (8, 32), (32, 2), (32, 64))
    ]
    assert_as_eager("encoder_decoder", cli_built("encoder_decoder"), sessions, tmp_path)


def test_decoder_takes_what_the_encoder_gives(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    program = cli_built("encoder_decoder")
    [[[encoded]]] = run(program, [[("encode", [floats(1, 50, 40)])]], tmp_path)
    assert_as_eager("encoder_decoder", program, [[("decode", [tokens(5, 128), encoded])]], tmp_path)


def test_a_method_without_partitioners_is_all_portable(cli_built: Callable[[str], Path]) -> None:
    report = json.loads(cli_built("encoder_decoder").with_suffix(".report.json").read_text())
    assert report["methods"]["decode"]["delegates"] == {}
    assert report["methods"]["encode"]["delegates"].keys() == {"XnnpackBackend"}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("embedder", "embed"),
        ("classifier", "classify"),
    ],
)
def test_shared_weights(name: str, method: str, cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    sessions = [[(method, [tokens(length)])] for length in (1, 16, 32, 64)]
    assert_as_eager(name, cli_built(name), sessions, tmp_path)


def test_both_programs_share_one_file_of_weights(cli_built: Callable[[str], Path]) -> None:
    first, second = (cli_built(name).with_suffix(".backbone.ptd").read_bytes() for name in ("embedder", "classifier"))
    assert first == second


def test_an_edit_to_the_graph_leaves_the_weights_file_as_it_is(
    cli_built: Callable[[str], Path], tmp_path: Path
) -> None:
    copy = tmp_path / "tiny_lm"
    shutil.copytree(EXAMPLES / "tiny_lm", copy, ignore=shutil.ignore_patterns("__pycache__"))
    model = copy / "model.py"
    before = model.read_text()
    model.write_text(before.replace("F.silu(", "F.gelu("))
    assert model.read_text() != before
    build(copy / "model.yaml", tmp_path)
    original, edited = cli_built("tiny_lm"), tmp_path / "tiny_lm.pte"
    assert edited.read_bytes() != original.read_bytes()
    assert edited.with_suffix(".weights.ptd").read_bytes() == original.with_suffix(".weights.ptd").read_bytes()


@pytest.mark.parametrize(("file", "manifest", "prefix"), FILES)
def test_checked_in_weights_are_what_the_script_makes(file: str, manifest: str, prefix: str) -> None:
    assert (EXAMPLES / file).read_bytes() == contents(EXAMPLES / manifest, prefix)


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "run_program.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_run_program_shows_the_outputs(cli_built: Callable[[str], Path]) -> None:
    done = run_program(str(cli_built("tiny_lm")), "prefill", "[[72, 101, 108, 108, 111]]")
    assert done.returncode == 0, done.stderr
    assert "tiny_lm.pte prefill([1, 5])\nfloat32 [1, 256]\n" in done.stdout


def test_run_program_names_a_missing_weights_file(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    for suffix in (".pte", ".index.json"):
        shutil.copy(cli_built("tiny_lm").with_suffix(suffix), tmp_path)
    done = run_program(str(tmp_path / "tiny_lm.pte"), "prefill")
    assert done.returncode == 1
    assert "tiny_lm.pte needs tiny_lm.weights.ptd, which is not beside it" in done.stderr


@pytest.mark.parametrize(("file", "name", "shape"), CALIBRATIONS)
def test_calibration_is_what_the_generator_makes(file: str, name: str, shape: tuple[int, ...]) -> None:
    torch.testing.assert_close(load_file(EXAMPLES / file), {name: uniform(name, torch.Size(shape))}, rtol=0, atol=0)


# The limits for a quantized program: its distance from eager PyTorch in fp32, relative to the size of the output, and
# the size of its weights relative to fp32.
QUANTIZED = {"spotter_int8": (0.02, 1 / 4), "spotter_int4": (0.15, 1 / 8)}


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(name: str, cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    tolerance, _ = QUANTIZED[name]
    recordings = [uniform(f"recording {seed}", torch.Size([1, 256])) for seed in range(4)]
    sessions = [[(method, [recording]) for recording in recordings] for method in ("embed", "classify")]
    actual, expected = run(cli_built(name), sessions, tmp_path), eager(name, sessions)
    for outputs, wanted in zip(actual, expected, strict=True):
        for (output,), (want,) in zip(outputs, wanted, strict=True):
            assert 0 < (output - want).norm() / want.norm() < tolerance


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_weights_are_small(name: str, cli_built: Callable[[str], Path]) -> None:
    """All linear weights, which both methods share, are compared with the same weights in fp32."""
    _, part = QUANTIZED[name]
    state = load_file(MANIFESTS[name].parent / "spotter.safetensors")
    fp32 = sum(tensor.nbytes for key, tensor in state.items() if key.endswith(".weight"))
    named = cli_built(name).with_name(f"{name}.weights.ptd").stat().st_size
    assert abs(named / fp32 - part) < 0.15 * part
