"""Same inputs, same bytes: whatever the directory, hash seed, number of threads, locale, time zone and umask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SHARED_WEIGHTS = Path(__file__).parents[2] / "examples" / "shared_weights"


def build(project: Path, umask: int, **environment: str) -> dict[str, bytes]:
    shutil.copytree(SHARED_WEIGHTS, project / "in")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "etbuild",
            "build",
            str(project / "in" / "classifier.yaml"),
            "--no-cache",
            "-o",
            str(project / "out"),
        ],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        umask=umask,
    )
    return {path.name: path.read_bytes() for path in (project / "out").iterdir()}


def test_surroundings_do_not_reach_the_bytes(tmp_path: Path) -> None:
    one = build(tmp_path / "a", 0o022, PYTHONHASHSEED="1", OMP_NUM_THREADS="1", LC_ALL="C", TZ="UTC", USER="one")
    two = build(
        tmp_path / "another" / "and longer path",
        0o077,
        PYTHONHASHSEED="31337",
        OMP_NUM_THREADS="2",
        LC_ALL="C.UTF-8",
        TZ="Asia/Tokyo",
        USER="two",
        ATEN_CPU_CAPABILITY="default",
    )
    assert sorted(one) == [
        "classifier.backbone.ptd",
        "classifier.index.json",
        "classifier.pte",
        "classifier.report.json",
    ]
    assert one == two


def test_no_artifact_holds_a_path(tmp_path: Path) -> None:
    for name, content in build(tmp_path, 0o022).items():
        assert str(tmp_path).encode() not in content, name
        assert b"site-packages" not in content, name


def test_a_set_in_a_model_has_one_order(tmp_path: Path) -> None:
    model = (
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        for name in {'sin', 'cos', 'tanh', 'relu', 'abs', 'neg'}:\n            x = getattr(torch, name)(x)\n"
        "        return x\n\ndef create():\n    return Net()\n"
    )
    manifest = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
    manifest += "methods: {forward: {example_inputs: [{shape: [2]}]}}\n"
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "model.yaml").write_text(manifest)
    made = set()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-m", "etbuild", "build", str(tmp_path / "model.yaml"), "-o", str(tmp_path / seed)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True)
        made.add((tmp_path / seed / "net.pte").read_bytes())
    assert len(made) == 1
