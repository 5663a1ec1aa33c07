"""`etbuild bench --adb` and `--from`: what a phone is given, and what it brings back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from etbuild.cli import main
from etbuild.steps.lowering_options import LoweringOptions
from etkit.inspection.recording import record
from etplugins.runtime import program_files

from .profiled_net import MANIFEST, MODEL, build_origins


def test_a_script_measures_on_a_phone_and_its_records_are_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], patterns_traced_once: None
) -> None:
    (tmp_path / "model.yaml").write_text(MANIFEST)
    (tmp_path / "model.py").write_text(MODEL)
    build_origins(tmp_path, tmp_path / "out", LoweringOptions(jobs=2))
    program, phone = tmp_path / "out/net.pte", tmp_path / "phone"

    def bench(*arguments: object) -> tuple[int, str]:
        code = main.main(["bench", str(program), "--method", "forward", *map(str, arguments)])
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    code, said = bench("--adb", phone, "--calls", 3, "--threads", 2)
    assert code == 0, said
    assert f"sh {phone / 'measure.sh'} RUNNER" in said
    script = (phone / "measure.sh").read_text()
    subprocess.run(["sh", "-n", phone / "measure.sh"], check=True)
    [call] = re.findall(r'adb shell "cd \$place && (\./runner .*)"', script)
    assert call.startswith("./runner --model_path=program.pte --num_executions=5 --etdump_path=forward.etdp")
    assert "--inputs=forward.0.bin" in call
    assert "--cpu_threads=2" in call
    for name in re.findall(r'adb push "\$here/(.*)" ', script):
        assert (phone / name).is_file(), name
    assert (phone / "program.pte").read_bytes() == program.read_bytes()

    code, said = bench("--from", phone)
    assert code == 2
    assert "the phone has not measured `forward`" in said
    files = program_files.read(program)
    fact = files.method("forward")["inputs"][0]
    raw = (phone / "forward.0.bin").read_bytes()
    inputs = torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(fact["shape"])  # type: ignore[typeddict-item]
    record(files, "forward", [inputs], 5, phone / "forward.etdp")  # the runtime here writes what that of a phone does
    code, said = bench("--from", phone)
    assert code == 0, said
    assert re.search(r"net\.pte forward: [\d.]+ .?s a call \(the median; .* in 3 calls\)", said), said

    code, said = bench("--adb", phone, "--input", "0=[[1, 2]]")
    assert code == 2
    assert "forward" in said
    assert bench("--adb", phone, "--json")[0] == 2
