"""Each backend lowers a model of two methods, which share one of three layers. The tests check the content and the
size.

The table of backends in docs/support.md has the results of these tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from etbuild import backends
from etbuild.surroundings.environment import FIXED
from tests.helpers import commands
from tests.helpers.rotation import values_that_run
from tests.helpers.runtime import run

DOCUMENT = Path(__file__).parents[2] / "docs/support.md"
WIDTH = 256
MODEL = f"""\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Linear({WIDTH}, {WIDTH})
        self.prefill_head = torch.nn.Linear({WIDTH}, {WIDTH})
        self.decode_head = torch.nn.Linear({WIDTH}, {WIDTH})

    def prefill(self, x):
        return self.prefill_head(self.shared(x).relu())

    def decode(self, x):
        return self.decode_head(self.shared(x).relu())

def create():
    return Net()

def batches(rows):
    return [torch.linspace(-1, 1, rows * {WIDTH}).reshape(rows, {WIDTH})]
"""
ROWS = {"prefill": 4, "decode": 1}


@dataclass(frozen=True)
class Case:
    """The options with which a backend lowers the model.

    Attributes:
        id: ExecuTorch's name of its delegates, or the namespace of its operators if it delegates nothing.
        options: The options of its partitioner.
        weight_bytes: The size of one weight in the type that the backend stores.
        quantizer: The options of its quantizer, if the methods are quantized.
        tolerance: The largest difference of its outputs from eager PyTorch.
    """

    id: str
    options: dict[str, Any]
    weight_bytes: int = 4
    quantizer: dict[str, Any] | None = None
    tolerance: float = 1e-4


CASES = {
    "coreml": Case("CoreMLBackend", {"minimum_deployment_target": "iOS18"}, 2),
    "cortex-m": Case("cortex_m", {}, 1, {}),
    "ethos-u": Case("EthosUBackend", {"target": "ethos-u85-256"}, 1, {"target": "ethos-u85-256"}),
    "native": Case("NativeBackend", {}),
    "openvino": Case("OpenvinoBackend", {}, tolerance=1e-2),  # it computes in bf16 if the processor can
    "portable": Case("aten", {}),
    "tosa": Case("TOSABackend", {}),
    "vgf": Case("VgfBackend", {"tosa_spec": "TOSA-1.0+FP"}),
    "vulkan": Case("VulkanBackend", {}),
    "webgpu": Case("VulkanBackend", {}),
    "xnnpack": Case("XnnpackBackend", {}),
}
# The backends above that lower fp32, with their quantizers. (Core ML's quantizer traces its patterns for more than a
# minute.)
QUANTIZED = {
    "openvino-int8": Case("OpenvinoBackend", {}, 1, {}),
    "tosa-int8": Case("TOSABackend", {"tosa_spec": "TOSA-1.0+INT"}, 1, {}),
    "vulkan-int8": Case("VulkanBackend", {}, 1, {"dynamic": True}),
}
# Options without which a backend's own schema refuses a manifest.
VENDORS: dict[str, dict[str, Any]] = {
    "mediatek": {"platform_config": "mt6991"},
    "nxp": {"target": "imxrt700"},
    "qualcomm": {"soc_model": "SM8650", "htp": {"use_fp16": True}},
    "samsung": {"chipset": "E9955"},
}
BUILD_ALL = """\
import sys
from etbuild.cli.main import main

directory, options, *manifests = sys.argv[1:]
for manifest in manifests:
    code = main(["build", manifest, "--no-cache", "-o", directory, *options.split()])
    assert code == 0, manifest
"""
# Surroundings that must not change the bytes, in addition to the order of builds, the process, and its processors.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "PYTHONHASHSEED": "31337",
    "TZ": "TOMORROW-24",  # in this time zone it is always another day
}


# Backends whose weights can be stored in a file beside the program.
TAGGED = ("native", "vulkan")
# Core ML's tools would give models random names: a case with other weights, and a case with one method.
CORE_ML = {"coreml-other": {"seed": 1}, "coreml-single": {}}


def is_here(name: str) -> bool:
    return not backends.missing(name, ())


def manifest(name: str, backend: str, options: dict[str, Any], quantizer: dict[str, Any] | None = None) -> str:
    method: dict[str, dict[str, Any]] = {
        name: {"example_inputs": [{"shape": [rows, WIDTH]}]} for name, rows in ROWS.items()
    }
    if quantizer is not None:
        for method_name, rows in ROWS.items():
            calibration = {"factory": "model:batches", "kwargs": {"rows": rows}}
            quantizers = [{"backend": backend, "options": quantizer}]
            method[method_name]["quantize"] = {"pt2e": {"quantizers": quantizers, "calibration": calibration}}
    content = {
        "schema": "executorch-model/v1",
        "name": name,
        "model": {"factory": "model:create"},
        "defaults": {"partitioners": [{"backend": backend, "options": options}]},
        "methods": method,
    }
    return yaml.safe_dump(content)


def build_all(root: Path, names: list[str], directory: str, options: str = "", **environment: str) -> str:
    """Builds all cases in a process, and returns its standard error."""
    command = [sys.executable, "-c", BUILD_ALL, directory, options, *(f"{name}.yaml" for name in names)]
    fixed = {**os.environ, **FIXED, **environment}  # as in the command line, except for the hash seed
    done = subprocess.run(command, cwd=root, env=fixed, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode()


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases of this run whose backend can lower on this machine, built in one process."""
    root = tmp_path_factory.mktemp("backends")
    (root / "model.py").write_text(MODEL)
    chosen = values_that_run(request, "name")
    names = []
    for name, case in {**CASES, **QUANTIZED}.items():
        backend = name.removesuffix("-int8")
        if name in chosen and is_here(backend):
            (root / f"{name}.yaml").write_text(manifest(name, backend, case.options, case.quantizer))
            names.append(name)
    for name in (name for name in TAGGED if name in chosen):
        content = yaml.safe_load((root / f"{name}.yaml").read_text())
        content = {**content, "name": f"{name}-tagged", "named_data": {"weights": {"parameters": ["*"]}}}
        (root / f"{name}-tagged.yaml").write_text(yaml.safe_dump(content))
        names.append(f"{name}-tagged")
    if "coreml" in names:
        for name, model in CORE_ML.items():
            content = yaml.safe_load((root / "coreml.yaml").read_text())
            content = {**content, "name": name, "model": {**content["model"], **model}}
            if name == "coreml-single":
                del content["methods"]["prefill"]
            (root / f"{name}.yaml").write_text(yaml.safe_dump(content))
        names += CORE_ML
    build_all(root, names, "here")
    return root / "here"


@pytest.fixture(scope="module")
def built_elsewhere(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same cases, built in another process with other surroundings, in reverse order, and with unmodified
    ExecuTorch.

    The process has one processor, and Intel's libraries see an older kind of it. Temporary files are in another kind of
    file system if the machine has one.
    """
    root = built.parent
    found = sorted(root.glob("*.yaml"), reverse=True)
    names = [path.stem for path in found if not path.stem.endswith(("-tagged", "-other"))]
    scratch = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(tmp_path_factory.mktemp("scratch"))
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(every)})
    try:
        build_all(root, names, "elsewhere", "--no-accelerate", TMPDIR=scratch, **SURROUNDINGS)
    finally:
        os.sched_setaffinity(0, every)
    return root / "elsewhere"


def report(built: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((built / f"{name}.report.json").read_bytes())
    return content


def assert_lowered(built: Path, name: str, case: Case) -> None:
    """Checks that both methods of a program contain the results of the backend."""
    for method in report(built, name)["methods"].values():
        if case.id.endswith("Backend"):
            assert method["delegates"] == {case.id: 1}
            assert not [operator for operator in method["operators"]["fallback"] if operator.startswith("aten::")]
        else:
            assert method["delegates"] == {}
            namespaces = {operator.partition("::")[0] for operator in method["operators"]["fallback"]}
            assert namespaces == {case.id}


def shares(built: Path, name: str, case: Case) -> bool:
    """Returns whether the size of a program shows that its methods share one copy of the common layer."""
    layers = (built / f"{name}.pte").stat().st_size / (WIDTH * WIDTH * case.weight_bytes)
    assert 3 <= layers < 3.6 or 4 <= layers < 4.8, layers
    return layers < 3.6


def is_registered(case: Case) -> bool:
    """Returns whether ExecuTorch's Python runtime on this machine has the backend, or all kernels of its operators."""
    from executorch.runtime import Runtime

    if case.id.endswith("Backend"):
        return case.id in Runtime.get().backend_registry.registered_backend_names
    return any(name.startswith(f"{case.id}::") for name in Runtime.get().operator_registry.operator_names)


def runs(built: Path, name: str, case: Case, scratch: Path) -> bool:
    """Returns whether both methods of a program can run on this machine. If so, checks the outputs against eager
    PyTorch."""
    if not is_registered(case):
        return False
    inputs = {method: torch.linspace(-2, 2, rows * WIDTH).reshape(rows, WIDTH) for method, rows in ROWS.items()}
    [answers] = run(built / f"{name}.pte", [[(method, [value]) for method, value in inputs.items()]], scratch)
    source: dict[str, Any] = {}
    exec(MODEL, source)
    torch.manual_seed(0)
    net = source["create"]()
    with torch.no_grad():
        for (method, value), outputs in zip(inputs.items(), answers, strict=True):
            torch.testing.assert_close(outputs[0], getattr(net, method)(value), rtol=0, atol=case.tolerance)
    return True


def documented_rows() -> Iterator[list[str]]:
    table = re.search(r"<!-- backends -->\n(.*?)\n<!-- /backends -->", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert table is not None
    for line in table.group(1).splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_document_has_a_row_for_every_backend() -> None:
    assert [row[0] for row in documented_rows()] == [
        f"`{name}`" for name in sorted(backends.BACKENDS) if name != "custom"
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_documented_measurements_are_right(name: str, built: Path, built_elsewhere: Path, tmp_path: Path) -> None:
    row = next(row for row in documented_rows() if row[0] == f"`{name}`")
    if not is_here(name):
        pytest.skip(", ".join(problem.message for problem in backends.missing(name, ())))
    case = CASES[name]
    assert_lowered(built, name, case)
    reproducible = (built / f"{name}.pte").read_bytes() == (built_elsewhere / f"{name}.pte").read_bytes()
    measured = [True, runs(built, name, case, tmp_path), shares(built, name, case), reproducible]
    assert row[1:] == ["yes" if cell else "no" for cell in measured]


@pytest.mark.parametrize("name", TAGGED)
def test_weights_are_beside_the_program_once(name: str, built: Path) -> None:
    layer = WIDTH * WIDTH * 4
    assert 3 * layer < (built / f"{name}-tagged.weights.ptd").stat().st_size < 3.2 * layer
    assert (built / f"{name}-tagged.pte").stat().st_size < layer


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantizer_leaves_nothing_to_the_portable_operators(name: str, built: Path, built_elsewhere: Path) -> None:
    backend = name.removesuffix("-int8")
    if not is_here(backend):
        pytest.skip(", ".join(problem.message for problem in backends.missing(backend, ())))
    assert_lowered(built, name, QUANTIZED[name])
    delegated = report(built, name)["methods"]["decode"]["operators"]["delegated"][QUANTIZED[name].id]
    assert any("dequantize" in operator for operator in delegated)
    assert (built / f"{name}.pte").read_bytes() == (built_elsewhere / f"{name}.pte").read_bytes()


def test_a_successful_build_prints_no_messages_of_backends(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    talkative = {
        "coreml": Case("", {"op_linear_quantizer_config": {"dtype": "int8"}}),
        "ethos-u": CASES["ethos-u"],
        "openvino": QUANTIZED["openvino-int8"],
    }
    names = [name for name in talkative if is_here(name)]
    for name in names:
        case = talkative[name]
        (tmp_path / f"{name}.yaml").write_text(manifest(name, name, case.options, case.quantizer))
    said = build_all(tmp_path, names, "out").splitlines()
    ours = ("was compared with PyTorch by", "with PyTorch: the build cannot run", "Vela's estimate of")
    assert [line for line in said if not any(each in line for each in ours)] == []


@pytest.mark.parametrize("name", ["coreml", "openvino"])
def test_a_persistent_worker_makes_the_same_each_time(name: str, built: Path, tmp_path: Path) -> None:
    """Tests the backends that are not deterministic by themselves: OpenVINO counts in a process, Core ML draws random
    numbers."""
    if not is_here(name):
        pytest.skip(", ".join(problem.message for problem in backends.missing(name, ())))
    for number in range(2):
        out = tmp_path / str(number)
        commands.build(built.parent / f"{name}.yaml", out)
        assert (out / f"{name}.pte").read_bytes() == (built / f"{name}.pte").read_bytes()


def test_openvino_compiles_for_this_machine_if_the_options_say_so(tmp_path: Path) -> None:
    """Only one of two methods has the option: lowering them together and one by one gives the same, and the program
    runs."""
    if not is_here("openvino"):
        pytest.skip("needs the extra `openvino`")
    (tmp_path / "model.py").write_text(MODEL)
    content = yaml.safe_load(manifest("net", "openvino", {}))
    entry = {"backend": "openvino", "options": {"for_this_machine": True}}
    content["methods"]["decode"]["partitioners"] = [entry]
    (tmp_path / "net.yaml").write_text(yaml.safe_dump(content))
    for jobs in ("1", "2"):
        commands.build(tmp_path / "net.yaml", tmp_path / jobs, "--jobs", jobs)
    assert (tmp_path / "1/net.pte").read_bytes() == (tmp_path / "2/net.pte").read_bytes()
    assert runs(tmp_path / "1", "net", CASES["openvino"], tmp_path)


def test_arm_replaces_the_one_infinity_that_is_written_otherwise() -> None:
    if not is_here("tosa"):
        pytest.skip("needs the extra `ethos-u`")
    options = {"passes": {"quantize_inf": {"neg_inf": -1.0}}}
    assert backends.check("tosa", options, ()) == []
    context = backends.Context("f", load=str, program=None)
    partitioner = backends.BACKENDS["tosa"].create_partitioner(options, context)
    chosen = partitioner.compile_spec._get_pass_pipeline_config().quantize_inf
    assert (chosen.neg_inf, chosen.pos_inf) == (-1.0, 255.0)


def core_ml_models(built: Path, name: str) -> dict[str, bytes]:
    """Returns the Core ML models in a program's named data by key."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    store = deserialize_pte_binary((built / f"{name}.pte").read_bytes()).named_data
    return {} if store is None else {key: bytes(store.buffers[e.buffer_index]) for key, e in store.pte_data.items()}


@pytest.mark.parametrize("name", ["coreml"])
def test_core_ml_reads_the_model_of_both_methods(name: str, built: Path, tmp_path: Path) -> None:
    """The parts of the model, sorted and renamed by the driver, are still a valid model package."""
    import coremltools
    from executorch.backends.apple.coreml import executorchcoreml

    [(key, content)] = core_ml_models(built, name).items()
    (tmp_path / "model").mkdir()
    assert executorchcoreml.unflatten_directory_contents(content, str(tmp_path / "model"))
    [root] = (tmp_path / "model").iterdir()
    metadata = json.loads((root / "metadata.json").read_bytes())
    assert key == f"coreml_{metadata['identifier']}"
    assert set(metadata["methods"]) == set(ROWS)
    model = coremltools.models.MLModel(str(root / "model.mlpackage"), skip_model_load=True)
    assert set(model.get_spec().mlProgram.functions) == set(ROWS)
    weights = next(root.rglob("weight.bin")).stat().st_size
    assert 3 * WIDTH * WIDTH * 2 < weights < 3.1 * WIDTH * WIDTH * 2


@pytest.mark.parametrize("name", ["coreml"])
def test_core_ml_models_with_other_weights_have_other_names(name: str, built: Path) -> None:
    assert core_ml_models(built, name).keys().isdisjoint(core_ml_models(built, f"{name}-other"))


@pytest.mark.parametrize("name", ["coreml"])
def test_a_core_ml_model_of_one_method_is_reproducible(name: str, built: Path, built_elsewhere: Path) -> None:
    assert (built / f"{name}-single.pte").read_bytes() == (built_elsewhere / f"{name}-single.pte").read_bytes()


@pytest.mark.parametrize("name", sorted(set(backends.BACKENDS) - {*CASES, "custom"} | {"vgf"}))
def test_what_a_backend_needs_is_said_before_anything_is_imported(name: str, tmp_path: Path) -> None:
    needs = backends.missing(name, ())
    if not needs:
        pytest.skip(f"all that `{name}` needs is here")
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "net.yaml").write_text(manifest("net", name, VENDORS.get(name, {})))
    code = "import sys; from etbuild.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "build", str(tmp_path / "net.yaml"), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert not (tmp_path / "out").exists()
    for problem in needs:
        assert f"methods.decode.partitioners[0]: {problem.message}\n    {problem.hint}" in done.stderr
    row = next(row for row in documented_rows() if row[0] == f"`{name}`")
    assert row[1:] == ["needs " + "; ".join(need.what for need in backends.BACKENDS[name].needs), "", "", ""]
