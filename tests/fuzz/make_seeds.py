"""Writes the seeds that come from a build. Run `python -m tests.fuzz.make_seeds` after a format changed."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from etbuild.cli import main as cli
from etbuild.files.zip_archive import canonical_archive
from etplugins.worker.protocol import WorkResponse, encode_response
from tests.fuzz.seeds import DIRECTORY
from tests.helpers.manifests import net

MODEL = net(
    "self.linear = torch.nn.Linear(4, 4)",
    'self.register_buffer("state", torch.zeros(2))',
    forward="return torch.sin(self.linear(x))",
    add="self.state += x\nreturn self.state + 1",
)
MANIFEST = {
    "schema": "executorch-model/v1",
    "name": "net",
    "model": {"factory": "model:create", "weights": "net.safetensors"},
    "methods": {
        "forward": {"example_inputs": [{"shape": [2, 4]}], "partitioners": ["xnnpack"]},
        "add": {"example_inputs": [{"shape": [2]}]},
    },
    "constant_methods": {"get_size": 4},
    "named_data": {"weights": {"parameters": ["*"]}},
}


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _write_seeds(Path(scratch))


def _write_seeds(scratch: Path) -> None:
    manifest, made = scratch / "model.yaml", scratch / "made"
    manifest.write_text(json.dumps(MANIFEST))
    (scratch / "model.py").write_text(MODEL)
    torch.manual_seed(0)
    weights = {"linear.weight": torch.randn(4, 4), "linear.bias": torch.randn(4), "state": torch.zeros(2)}
    save_file(weights, scratch / "net.safetensors")
    (scratch / "net.pt2").write_bytes(_exported())
    _build_in_steps(scratch, manifest, made)
    DIRECTORY.mkdir(exist_ok=True)
    for name, path in {
        "pte-net": made / "net.pte",
        "ptd-net": made / "net.weights.ptd",
        "etdump-net": made / "net.etdp",
        "report-net": made / "net.report.json",
        "lowering-net": made / "net.lowering.json",
        "export-net": scratch / "export/module.json",
        "lowered_method-net": scratch / "lowered/forward/method.json",
        "safetensors-net": scratch / "net.safetensors",
        "pt2-net": scratch / "net.pt2",
    }.items():
        shutil.copyfile(path, DIRECTORY / name)
    # A response has the form of a request: numbers, and bytes with their length in front.
    (DIRECTORY / "work_protocol-response").write_bytes(encode_response(WorkResponse(1, "output", 7, True)))
    (DIRECTORY / "work_protocol-request").write_bytes(bytes([14, 10, 1, 97, 18, 4, 10, 2, 98, 99, 24, 5, 50, 1, 100]))


def _exported() -> bytes:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it contains paths of this machine
    saved = io.BytesIO()
    torch.export.save(program, saved)
    return canonical_archive(saved.getvalue())


def _build_in_steps(scratch: Path, manifest: Path, made: Path) -> None:
    plans = {name: str(scratch / f"net.{name}.json") for name in ("plan", "export-plan", "lower-plan", "method")}
    declared = [f"--data=net.safetensors={scratch / 'net.safetensors'}"]
    sources = [f"--source=model.py={scratch / 'model.py'}"]
    export, inputs = str(scratch / "export"), str(scratch / "inputs.json")
    options = [f"--{name}={plans[name]}" for name in ("plan", "export-plan", "lower-plan")]
    for arguments in (
        ["plan", str(manifest), *options, f"--method-plan=forward={plans['method']}"],
        ["export", plans["export-plan"], *sources, *declared, "--inputs", inputs, "-o", export],
        ["lower", plans["method"], "--export", export, "--templates", "-o", str(scratch / "lowered")],
        ["lower", plans["lower-plan"], "--export", export, *declared, "-o", str(made)],
        ["report", plans["plan"], "--inputs", inputs, "--lowering", str(made / "net.lowering.json"), "-o", str(made)],
        ["profile", str(made / "net.pte"), "add", "--calls=2", "--etdump", str(made / "net.etdp")],
    ):
        code = cli.main(arguments)
        assert code == 0, arguments


if __name__ == "__main__":
    main()
