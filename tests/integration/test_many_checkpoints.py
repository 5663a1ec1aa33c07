"""`etbuild build --weights`: one program for each checkpoint. They share the export and the templates of methods."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from etbuild.cli import main
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache

MODEL = """\
import torch
def create():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).eval()
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", weights: net.safetensors}
defaults: {partitioners: [xnnpack]}
methods: {forward: {example_inputs: [{shape: [1, 4]}]}}
metadata: {weights_licenses: {net.safetensors: MIT}}
"""


def tensors(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        f"{layer}.{name}": torch.randn((4, 4)[: 1 + (name == "weight")])
        for layer in (0, 2)
        for name in ("weight", "bias")
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest, its model, and three checkpoints. It is the current directory."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "net.yaml").write_text(MANIFEST)
    for step in range(3):
        save_file(tensors(step), tmp_path / f"step_{step}.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def build(project: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Builds with options. Returns the exit code, standard output and standard error."""

    def run(*options: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main.main(["build", "net.yaml", "--cache-dir", "cache", "-o", "out", *options])
        return code, *capfd.readouterr()

    return run


Run = Callable[..., tuple[int, str, str]]


def test_each_checkpoint_gives_a_program(project: Path, build: Run) -> None:
    code, out, err = build("--weights", "step_*.safetensors", "--json")
    assert code == 0, err
    programs: list[dict[str, Any]] = json.loads(out)
    assert [(each["name"], each["methods"]["forward"]) for each in programs] == [
        ("net.step_0", "run"),
        ("net.step_1", "cached"),
        ("net.step_2", "cached"),
    ]
    records = cache_upkeep.info(Cache(project / "cache")).records
    assert (records["export"], records["method"], records["program"]) == (1, 1, 3)
    indexes = [json.loads(path.read_text()) for path in sorted((project / "out").glob("net.step_*.index.json"))]
    assert len({each["template"] for each in indexes}) == 1
    assert len({each["artifacts"][0]["sha256"] for each in indexes}) == 3
    index = indexes[1]
    assert list(index["inputs"]["data"]) == ["net.step_1/step_1.safetensors"]

    shutil.copy("step_1.safetensors", "net.safetensors")
    assert build("--no-accelerate")[0] == 0
    assert (project / "out/net.step_1.pte").read_bytes() == (project / "out/net.pte").read_bytes()


def test_a_variant_is_built_with_each_checkpoint(project: Path, build: Run, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "net.yaml").write_text(f"{MANIFEST}variants: {{small: {{defaults: {{partitioners: [portable]}}}}}}\n")
    assert build("--weights", "step_*.safetensors", "--variant", "small")[0] == 0
    indexes = [f"out/net.small.step_{step}.index.json" for step in range(2)]
    assert main.main(["explain", *indexes]) == 0
    assert "data `net.small.step_1/step_1.safetensors` added" in capfd.readouterr().out


def test_an_error_of_one_checkpoint_leaves_the_others(project: Path, build: Run) -> None:
    (project / "step_0.safetensors").write_bytes(b"")
    save_file({"0.weight": torch.ones(4, 4)}, project / "step_2.safetensors")
    code, out, err = build("--weights", "step_*.safetensors")
    assert code == 2
    assert "out/net.step_1.pte" in out
    assert "`net.step_0/step_0.safetensors` is empty (in the program net.step_0)" in err
    assert err.count("(in the program net.step_2)") == 3


def test_an_error_of_all_programs_is_said_once(project: Path, build: Run) -> None:
    (project / "model.py").write_text("import nothing_that_there_is\n" + MODEL)
    code, _, err = build("--weights", "step_*.safetensors")
    assert code == 1
    assert err.count("ModuleNotFoundError") == 1
    assert "(in the programs net.step_0, net.step_1, net.step_2)" in err


def test_checkpoints_of_one_name_are_called_like_their_folders(project: Path, build: Run) -> None:
    """One is in a file, the other in shards with an index."""
    for step in range(2):
        (project / f"run/checkpoint-{step}").mkdir(parents=True)
        shutil.move(f"step_{step}.safetensors", project / f"run/checkpoint-{step}/model.safetensors")
    code, out, err = build("--weights", "run/*/model.safetensors")
    assert code == 0, err
    assert "out/net.checkpoint-0.pte" in out
    assert "out/net.checkpoint-1.pte" in out

    folder = project / "run/checkpoint-1"
    names = list(tensors(1))
    shards = {"a.safetensors": names[:2], "b.safetensors": names[2:]}
    for shard, held in shards.items():
        save_file({name: tensors(1)[name] for name in held}, folder / shard)
    (folder / "model.safetensors").unlink()
    listed = {name: shard for shard, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    (folder / "config.json").write_text("{}")
    before = (project / "out/net.checkpoint-1.pte").read_bytes()
    for weights in ("run/checkpoint-1", "run/checkpoint-1/model.safetensors.index.json"):
        code, out, err = build("--weights", weights, "--json")
        assert code == 0, err
        name = json.loads(out)[0]["name"]
        assert (project / f"out/{name}.pte").read_bytes() == before


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (["stop_*.safetensors"], "--weights stop_*.safetensors: no such file"),
        (["step_9.safetensors"], "--weights step_9.safetensors: no such file"),
        (["step_1.safetensors", "other/step_1.safetensors", "step_2.safetensors"], "would both be called NAME.step_1"),
        (["net.yaml"], "no checkpoint like `net.safetensors`, which it would replace"),
        (["step_1.gguf"], "no checkpoint like `net.safetensors`, which it would replace"),
        (["taken.safetensors"], "its program would be called like net.taken"),
    ],
)
def test_what_is_no_checkpoint_is_an_error(project: Path, build: Run, weights: list[str], message: str) -> None:
    (project / "net.taken").mkdir()
    (project / "other").mkdir()
    for name in ("other/step_1.safetensors", "step_1.gguf", "taken.safetensors"):
        shutil.copy("step_1.safetensors", name)
    code, _, err = build(*(word for each in weights for word in ("--weights", each)))
    assert (code, message in err) == (2, True), err


@pytest.mark.parametrize(("weights", "count"), [("", 0), (", weights: [a.safetensors, b.safetensors]", 2)])
def test_a_manifest_must_have_one_checkpoint(project: Path, build: Run, weights: str, count: int) -> None:
    manifest = MANIFEST[: MANIFEST.index("metadata")].replace(", weights: net.safetensors", weights)
    (project / "net.yaml").write_text(manifest)
    code, _, err = build("--weights", "step_1.safetensors")
    assert code == 2
    assert f"net.yaml:3:1: model: `--weights` needs a manifest with one checkpoint; this one has {count}" in err
