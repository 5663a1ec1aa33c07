"""A short form of the score of the comparison: faults that are planted by machine are found, and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_planted_faults_are_found_and_a_program_without_a_fault_is_right(tmp_path: Path) -> None:
    script = ROOT / "benchmarks/comparison/mutations.py"
    command: list[str | Path] = [sys.executable, script, "--count", "8", "--write", tmp_path]
    models = ["--models", "small: stream", "small: tagger"]
    kinds = ["--kinds", "weights swapped", "operator dropped", "bias dropped", "state", "emitted: instruction dropped"]
    subprocess.run([*command, *models, *kinds], check=True, capture_output=True)
    figures = json.loads((tmp_path / "mutations.json").read_bytes())
    assert figures["models"] == 2
    assert figures["false alarms"] == figures["left out"] == {}
    assert figures["planted"] == 8
    assert len(figures["kinds"]) >= 4
    assert figures["missed faults"] == []
    assert figures["found"] >= 6
