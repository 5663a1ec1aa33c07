"""Programs for Arm's backends are compared with their models, in Arm's reference model of TOSA."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from etplugins.comparison import compare, reference_session
from tests.helpers.commands import worker

pytest.importorskip("tosa_reference_model", reason="needs the extra `ethos-u`")

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 16, 5)

    def forward(self, x):
        x = torch.tanh(nn.functional.max_pool2d(self.conv(x), 2))
        return self.head(x.flatten(1)).softmax(-1)

    def decide(self, x):
        return self.forward(x)

    def precise(self, x):
        return self.forward(x).sigmoid()

    def add(self, x, y):
        return x + y


def create():
    return Net()


def batches():
    numbers = torch.Generator().manual_seed(0)
    return [torch.randn(1, 3, 8, 8, generator=numbers) for _ in range(8)]
"""
FAULTS = """\
def of_floats(method, program):
    from executorch.backends.arm.operators.op_tosa_sigmoid import SigmoidVisitor
    from executorch.backends.arm.operators.op_tosa_tanh import TanhVisitor

    TanhVisitor.get_config = SigmoidVisitor.get_config
    return []


def of_integers(method, program):
    from executorch.backends.arm._passes.insert_table_ops import InsertTableOpsPass

    right = InsertTableOpsPass.generate_8bit_table_values

    def shifted(self, *arguments):
        values, shift = right(self, *arguments)
        return values.roll(16), shift

    InsertTableOpsPass.generate_8bit_table_values = shifted
    return []


def of_reference(method, program):
    import tosa_reference_model

    def run(*arguments, **options):
        raise RuntimeError("no such operator")

    tosa_reference_model.run = run
    return []
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward:
    example_inputs: [{shape: [1, 3, 8, 8]}]
    partitioners: [tosa]
  decide:
    entry: decide
    example_inputs: [{shape: [1, 3, 8, 8]}]
    partitioners:
      - backend: ethos-u
        options:
          target: ethos-u55-128
          config_ini: {system_config: {inherit: System_Config.Ethos_U55_High_End_Embedded, core_clock: 123000000}}
    quantize:
      pt2e:
        quantizers: [{backend: ethos-u, options: {target: ethos-u55-128}}]
        calibration: {factory: "model:batches"}
"""
ADDS = """\
  add:
    entry: add
    example_inputs: [{shape: [4], dtype: int32}, {shape: [4], dtype: int32}]
    partitioners: [tosa]
"""
PRECISE = """\
  precise:
    entry: precise
    example_inputs: [{shape: [1, 3, 8, 8]}]
    partitioners: [{backend: tosa, options: {tosa_spec: TOSA-1.0+INT+int16}}]
    quantize:
      pt2e:
        quantizers: [{backend: tosa, options: {tosa_spec: TOSA-1.0+INT+int16, activations: int16}}]
        calibration: {factory: "model:batches"}
"""


def build(directory: Path, more: str = "", *cache: str, text: str = MANIFEST) -> tuple[int, str]:
    (directory / "model.py").write_text(MODEL)
    (directory / "faults.py").write_text(FAULTS)
    (directory / "net.yaml").write_text(text + more)
    answer = worker().ask("build", directory / "net.yaml", "-o", directory / "out", *(cache or ["--no-cache"]))
    return answer.exit_code, answer.output


def test_what_is_lowered_rightly_builds_and_a_note_says_what_ran_it(tmp_path: Path) -> None:
    code, output = build(tmp_path, PRECISE + ADDS)
    assert code == 0, output
    by = "was compared with PyTorch by Arm's reference model: the build cannot run"
    assert f"`forward` {by} TOSABackend" in output
    assert f"`decide` {by} EthosUBackend" in output
    assert f"`precise` {by} TOSABackend" in output  # tables of 16-bit integers are coarser than rounding
    assert f"`add` {by} TOSABackend" in output  # TOSA leaves open what an overflow gives, and random numbers overflow
    notes = json.loads((tmp_path / "out/net.report.json").read_bytes())["notes"]
    [estimate] = [note for note in notes if "Vela" in note]
    assert re.fullmatch(
        r"Vela's estimate of `decide`: [\d,]+ cycles, [\d.]+ ms, .* bytes of SRAM.* at 123 MHz", estimate
    )


DECIDE = MANIFEST[: MANIFEST.index("  forward:")] + MANIFEST[MANIFEST.index("  decide:") :]


def test_limits_for_what_vela_estimates(tmp_path: Path) -> None:
    kept = ("--cache-dir", str(tmp_path / "cache"))
    large = "checks: {vela: {cycles: 1000000, sram_bytes: {decide: 1e9}}}\n"
    code, output = build(tmp_path, large, *kept, text=DECIDE)
    assert code == 0, output
    figures = json.loads((tmp_path / "out/net.index.json").read_bytes())["vela"]["decide"]
    assert figures["milliseconds"] == pytest.approx(figures["cycles"] / 123e3)
    checks = json.loads((tmp_path / "out/net.report.json").read_bytes())["checks"]
    assert {"check": "vela.cycles", "of": "decide", "limit": 1000000, "actual": figures["cycles"]} in checks

    small = large.replace("1000000", "1").replace("1e9", "2.5")
    code, output = build(tmp_path, small, *kept, text=DECIDE)
    assert code == 3, output
    at, cycles = f"{DECIDE.count(chr(10)) + 1}:{small.index('1,') + 1}", round(figures["cycles"])
    said = f"net.yaml:{at}: checks.vela.cycles: Vela estimates {cycles:,} cycles for `decide`; the limit is 1\n"
    assert said in output
    assert "checks.vela.sram_bytes.decide: Vela estimates " in output
    [note] = [each for each in json.loads((tmp_path / "out/net.report.json").read_bytes())["notes"] if "Vela" in each]
    [shown] = re.findall(r"([\d.,e-]+) ms", note)
    assert float(shown) == pytest.approx(figures["milliseconds"], rel=0.01)


def test_a_limit_for_what_vela_did_not_compile_fails_the_build(tmp_path: Path) -> None:
    """Without quantization, Ethos-U takes nothing, and all figures would be 0."""
    text = DECIDE[: DECIDE.index("    quantize:")]
    code, output = build(tmp_path, "checks: {vela: {cycles: 1000}}\n", text=text)
    assert code == 3, output
    assert "checks.vela.cycles: Vela compiled nothing of `decide`, so it has no estimate" in output


def test_limits_hold_for_what_a_recipe_gives_to_vela(tmp_path: Path) -> None:
    text = DECIDE[: DECIDE.index("    partitioners:")]
    for limit in ("{cycles: 1}", "{cycles: {decide: 1}}"):
        code, output = build(tmp_path, f"recipe: arm_ethos_u55_int8\nchecks: {{vela: {limit}}}\n", text=text)
        assert code == 3, output
        assert ": Vela estimates " in output
    code, output = build(tmp_path, "recipe: xnnpack_fp32\nchecks: {vela: {cycles: 1}}\n", text=text)
    assert code == 3, output
    assert "checks.vela.cycles: Vela compiled nothing of `decide`, so it has no estimate" in output


@pytest.mark.parametrize(("fault", "method"), [("of_floats", "forward"), ("of_integers", "decide")])
def test_a_fault_in_the_lowering_to_tosa_fails_the_build(fault: str, method: str, tmp_path: Path) -> None:
    code, output = build(tmp_path, f'passes: {{edge: ["faults:{fault}"]}}\n')
    assert code != 0
    assert f"methods.{method}: the program computes something else than the exported method" in output
    assert "operator of" in output
    assert "at model.py:11, in forward: `x = torch.tanh(" in output


def test_a_method_that_the_reference_cannot_run_is_compared_with_its_model_all_the_same(tmp_path: Path) -> None:
    code, output = build(tmp_path, 'passes: {edge: ["faults:of_reference"]}\n')
    assert code == 0, output
    why = "Arm's reference model cannot run it: RuntimeError: no such operator"
    assert f"`forward` was not compared with PyTorch: {why}" in output
    assert re.search(r"`decide` was not compared .*; it is quantized: SQNR [\d.]+ dB against the float model", output)


def test_a_call_that_takes_minutes_is_refused_before_its_method_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(torch.nn.Conv2d(3, 4, 3), (torch.ones(1, 3, 8, 8),))
    monkeypatch.setattr(reference_session, "_MOST_WORK", 0)
    nothing: Any = None
    with pytest.raises(compare.CannotRun, match="minutes"):
        reference_session.ReferenceSession(nothing, {"forward": program}, nothing)
