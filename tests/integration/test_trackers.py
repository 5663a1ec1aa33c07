"""The code of docs/python-api.md for trackers of experiments logs numbers and files of a build, without a network."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import etbuild
from tests.conftest import MANIFESTS
from tests.helpers.snippets import ROOT, snippets

PYTHON = ROOT / ".cache/checks/bin/python"
BLOCKS = [each for each in snippets() if each.notes.get("run by") == "tests/integration/test_trackers.py"]
READ = {
    "mlflow": """
import mlflow
client = mlflow.MlflowClient()
[run] = client.search_runs(["0"])
metrics, files = run.data.metrics, [file.path for file in client.list_artifacts(run.info.run_id)]
""",
    "wandb": """
import re
[kept] = Path().glob("wandb/offline-run-*/*.wandb")
content = kept.read_bytes()
number = rb"[^0-9]{1,9}([0-9.e-]+)"  # a few bytes of Protocol Buffers, and JSON
metrics = {name: float(re.search(re.escape(name).encode() + number, content)[1]) for name in built.metrics}
files = [path.name for path in built.artifacts if path.name.encode() in content]
""",
}
"""How another process reads what the page's code has logged: Weights & Biases writes until its own process ends."""

pytestmark = pytest.mark.skipif(
    not any(PYTHON.parents[1].glob("lib/python*/site-packages/mlflow")), reason="`make test` installs the trackers"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> etbuild.Built:
    return etbuild.load(MANIFESTS["mlp"]).build(tmp_path_factory.mktemp("out"))


@pytest.mark.parametrize("tracker", READ)
def test_a_tracker_gets_numbers_and_files(tracker: str, built: etbuild.Built, tmp_path: Path) -> None:
    [block] = [each for each in BLOCKS if each.text.startswith(f"import {tracker}\n")]
    has = {"metrics": built.metrics, "artifacts": list(map(str, built.artifacts))}
    given = f"import types\nfrom pathlib import Path\nbuilt = types.SimpleNamespace(**{has!r})\n"
    given += "built.artifacts = list(map(Path, built.artifacts))\n"
    said = "import json\nprint(json.dumps([metrics, files]))"
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": f"file:{tmp_path}/runs",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
    for script in (block.text, f"{READ[tracker]}\n{said}"):
        command = [str(PYTHON), "-c", f"{given}{script}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    metrics, files = json.loads(done.stdout)
    assert {name: metrics[name] for name in built.metrics} == built.metrics
    assert sorted(files) == sorted(path.name for path in built.artifacts)
