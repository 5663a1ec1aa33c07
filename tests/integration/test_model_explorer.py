"""Google's Model Explorer reads programs by our adapter. Its own loader finds the adapter and runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from etbuild.errors import InputError
from etkit.inspection.model_explorer import graphs

from .conftest import MANIFEST, Build

ROOT = Path(__file__).parents[2]
SITE = next((ROOT / ".cache/checks/lib").glob("python*/site-packages"), None)
LOADER = """
import json, sys
sys.path.append(sys.argv[1])
from model_explorer.extension_manager import ExtensionManager

manager = ExtensionManager(["etkit.inspection.model_explorer"])
manager.load_extensions()
[found] = [each for each in manager.get_extensions_metadata() if each["id"] == "executorch_program"]
command = {"cmdId": "convert", "extensionId": found["id"], "modelPath": sys.argv[2], "settings": {}}
print(json.dumps({"extension": found, "shown": manager.run_cmd({**command, "deleteAfterConversion": False})}))
"""
MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(x)).sort()[0]


def create():
    torch.manual_seed(0)
    return Net()
"""


def loaded(program: Path) -> Any:
    assert SITE is not None
    command = [sys.executable, "-c", LOADER, str(SITE), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def labels(nodes: list[dict[str, Any]]) -> list[str]:
    return [node["label"] for node in nodes]


def test_a_program_without_its_build_has_a_node_for_each_delegate(build: Build) -> None:
    program = build(model=MODEL).directory / "net.pte"
    program.with_name("net.index.json").unlink()
    [graph] = graphs.of_file(program)
    assert labels(graph["nodes"]) == ["input", "XnnpackBackend", "sort.values", "output"]


def test_the_whole_graph_is_folded_by_module(build: Build) -> None:
    made = build(MANIFEST, "--origins", model=MODEL)
    assert {"net.lowering.json", "net.export.lines.json"} <= {*made.files}
    [graph] = graphs.of_file(made.directory / "net.pte")
    spaces = {node["label"]: node["namespace"] for node in graph["nodes"]}
    assert spaces["relu"] == "body/1"
    assert spaces["sort"] == ""
    attributes = {each["key"] for node in graph["nodes"] for each in node["attrs"]}
    assert {"delegate", "layer", "weight head.weight", "not delegated"} <= attributes
    ids = {node["id"] for node in graph["nodes"]}
    assert all(edge["sourceNodeId"] in ids for node in graph["nodes"] for edge in node["incomingEdges"])


def test_numbers_of_what_is_not_there_are_damage(build: Build) -> None:
    made = build(MANIFEST, "--origins", model=MODEL)
    program, path = made.directory / "net.pte", made.directory / "net.lowering.json"
    whole = path.read_text("utf-8")
    for key, wrong in (("block", 99), ("weights", [99])):
        facts = json.loads(whole)
        for graph in facts["graphs"].values():
            for node in graph["nodes"]:
                node[key] = wrong
        path.write_text(json.dumps(facts), "utf-8")
        for asked in (path, program):
            with pytest.raises(InputError, match=r"net\.lowering\.json: the file is damaged"):
                graphs.of_file(asked)


@pytest.mark.skipif(SITE is None, reason="`make test` installs Model Explorer in .cache/checks")
def test_its_own_loader_reads_the_program(build: Build) -> None:
    program = build(model=MODEL).directory / "net.pte"
    found = loaded(program)
    assert found["extension"]["fileExts"] == ["pte"]
    shown = json.dumps(found["shown"])
    assert "XnnpackBackend" in shown
    assert "sort.values" in shown
