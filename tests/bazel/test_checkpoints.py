"""A checkpoint of a hub as inputs of a program: downloaded once, pinned by sha256, in shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.runtime import run
from tests.helpers.workspaces import WORKERS, Workspace

MODEL = """\
import torch


def create():
    return torch.nn.Linear(8, 4)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", weights: tiny-net, dtype: float32}
defaults: {partitioners: [xnnpack]}
methods: {forward: {example_inputs: [{shape: [1, 8]}]}}
"""
BUILD = """\
load("//rules:defs.bzl", "executorch_program")

executorch_program(
    name = "net",
    srcs = ["model.py"],
    data = ["@tiny//:config"],
    manifest = "net.yaml",
    weights = ["@tiny//:weights"],
)
"""
WEIGHT, BIAS = torch.arange(32.0).reshape(4, 8), torch.full((4,), 0.5)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub below a directory, with one model in bfloat16 and two shards."""
    root = tmp_path_factory.mktemp("hub")
    folder = root / "someone/tiny-net/resolve/1234"
    folder.mkdir(parents=True)
    shards = {"weight": "model-00001-of-00002.safetensors", "bias": "model-00002-of-00002.safetensors"}
    save_file({"weight": WEIGHT.bfloat16()}, folder / shards["weight"])
    save_file({"bias": BIAS.bfloat16()}, folder / shards["bias"])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "config.json").write_text("{}")
    return root


def declaration(hub: Path) -> str:
    files = sorted((hub / "someone/tiny-net/resolve/1234").iterdir())
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return (
        'load("//rules:repositories.bzl", "huggingface_checkpoint")\n'
        f'huggingface_checkpoint(\n    name = "tiny",\n    files = {json.dumps(digests)},\n'
        '    repo = "someone/tiny-net",\n    revision = "1234",\n'
        f'    url = "file://{hub}/{{repo}}/resolve/{{revision}}/{{file}}",\n)\n'
    )


@pytest.fixture
def workspace(checkout: Workspace) -> Iterator[Workspace]:
    before = (checkout.directory / "WORKSPACE").read_text("utf-8")
    for name, text in {"model.py": MODEL, "net.yaml": MANIFEST, "BUILD": BUILD}.items():
        checkout.write(f"hub/{name}", text)
    yield checkout
    checkout.write("WORKSPACE", before)
    for file in (checkout.directory / "hub").iterdir():
        file.unlink()


def test_shards_of_a_hub_are_weights_of_a_program(workspace: Workspace, hub: Path, tmp_path: Path) -> None:
    text = (workspace.directory / "WORKSPACE").read_text("utf-8")
    workspace.write("WORKSPACE", text + declaration(hub))
    workspace.build("//hub:net", *WORKERS)
    inputs = torch.linspace(-1, 1, 8).reshape(1, 8)
    ((output,),) = run(workspace.output("hub/net.pte"), [[("forward", [inputs])]], tmp_path)[0]
    torch.testing.assert_close(output, torch.nn.functional.linear(inputs, WEIGHT, BIAS))
    data = json.loads(workspace.output("hub/net.index.json").read_text())["inputs"]["data"]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    expected = ["config.json", *names, "model.safetensors.index.json"]
    assert sorted(data) == [f"tiny-net/{name}" for name in expected]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"config.json": "', '"config.json": "0', "has to have 64 hexadecimal digits"),
        ('"config.json": "', '"../config.json": "', "is not a relative path without `..`"),
        ("{file}", "{name}", "`url` has no `{file}`"),
        (hashlib.sha256(b"{}").hexdigest(), "0" * 64, "Checksum was"),
    ],
)
def test_what_is_not_pinned_or_leaves_the_folder_is_refused(
    workspace: Workspace, hub: Path, old: str, new: str, message: str
) -> None:
    text = (workspace.directory / "WORKSPACE").read_text("utf-8")
    assert old in declaration(hub)
    workspace.write("WORKSPACE", text + declaration(hub).replace(old, new))
    assert message in workspace.build("--nobuild", "@tiny//:files", expect=1).err
