"""A checkpoint of a hub as inputs of a program: downloaded once, pinned by sha256, in shards."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

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


TOKEN = "Bearer a-token"


class Gate(ThreadingHTTPServer):
    """A hub that gives its files to those who send a token. It answers when two have asked at the same time, or after a
    while."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.two = Barrier(2)
        self.patience = 5.0  # seconds
        self.met = 0
        super().__init__(("127.0.0.1", 0), GatedFiles)


class GatedFiles(SimpleHTTPRequestHandler):
    """Answers one request of `Gate`."""

    server: Gate

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(arguments[2].directory))

    def do_GET(self) -> None:
        if self.headers["Authorization"] != TOKEN:
            self.send_error(401)
            return
        try:
            self.server.two.wait(self.server.patience)
            self.server.met += 1
        except BrokenBarrierError:
            self.server.two.reset()
        super().do_GET()

    def log_message(self, *arguments: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def gate(hub: Path) -> Iterator[Gate]:
    with Gate(hub) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


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


def test_all_files_with_tensors_are_weights(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "hub/someone/tiny-net/resolve/1234"
    folder.mkdir(parents=True)
    for name in ("config.json", "old.ckpt", "q8.gguf", "tokenizer.json"):
        (folder / name).write_text(name)
    text = (workspace.directory / "WORKSPACE").read_text("utf-8")
    workspace.write("WORKSPACE", text + declaration(tmp_path / "hub"))
    for target, files in {"weights": ["old.ckpt", "q8.gguf"], "config": ["config.json", "tokenizer.json"]}.items():
        listed = workspace.bazel("query", f"labels(srcs, @tiny//:{target})").stdout.split()
        assert sorted(each.rpartition("/")[2] for each in listed) == files


def gated(hub: Path, gate: Gate, netrc: Path, pattern: str = "Bearer <password>") -> str:
    """The declaration of a checkpoint behind the gate, with a netrc file that has the token."""
    netrc.write_text("machine 127.0.0.1 login me password a-token\n")
    text = declaration(hub).replace(f"file://{hub}", f"http://127.0.0.1:{gate.server_port}")
    more = f'    netrc = "{netrc}",\n    auth_patterns = {{"127.0.0.1": "{pattern}"}},\n'
    return text.replace('    repo = "', more + '    repo = "')


def test_a_gated_checkpoint_is_for_those_who_have_a_token(
    workspace: Workspace, hub: Path, gate: Gate, tmp_path: Path
) -> None:
    gate.patience = 0  # Bazel 4 asks for one file after the other
    text = (workspace.directory / "WORKSPACE").read_text("utf-8")
    command = ("--nobuild", "@tiny//:files", f"--repository_cache={tmp_path / 'cache'}")
    workspace.write("WORKSPACE", text + gated(hub, gate, tmp_path / "netrc", "Bearer <login>"))
    assert "401" in workspace.build(*command, expect=1).err
    workspace.write("WORKSPACE", text + gated(hub, gate, tmp_path / "netrc"))
    workspace.build(*command)


def test_bazel_7_reserves_memory_for_the_sizes_of_files(
    workspace: Workspace, hub: Path, bazel7: Callable[..., Path], tmp_path: Path
) -> None:
    """A checkpoint of 1 MB, and no size: `default`."""
    module, said = workspace.directory / "MODULE.bazel", tmp_path / "actions.txt"
    before = module.read_text("utf-8")
    rule = 'huggingface_checkpoint = use_repo_rule("//rules:repositories.bzl", "huggingface_checkpoint")\n'
    shown = ('mnemonic("ExecutorchLower", //hub:net)', "--include_param_files", f"--output_file={said}")
    try:
        module.write_text(before + rule + declaration(hub).partition("\n")[2])
        for attribute, reserved in (
            ('"@tiny//:weights"', "2048"),
            ('"@tiny//:tiny-net/model.safetensors.index.json"', "1500"),
        ):
            workspace.write("hub/BUILD", BUILD.replace('"@tiny//:weights"', attribute))
            bazel7(workspace.directory, "aquery", *shown)
            assert set(re.findall(r"--reserved-memory=(\d+)", said.read_text())) == {reserved}
    finally:
        module.write_text(before)


def test_bazel_7_downloads_several_files_of_a_gated_checkpoint_at_a_time(
    checkout: Workspace, hub: Path, gate: Gate, bazel7: Callable[..., Path], tmp_path: Path
) -> None:
    module = checkout.directory / "MODULE.bazel"
    before = module.read_text("utf-8")
    rule = 'huggingface_checkpoint = use_repo_rule("//rules:repositories.bzl", "huggingface_checkpoint")\n'
    own = checkout.directory / ".cache/netrc"
    own.parent.mkdir(exist_ok=True)
    try:
        module.write_text(before + rule + gated(hub, gate, own).partition("\n")[2])
        bazel7(checkout.directory, "build", "@tiny//:files", "--nobuild")
    finally:
        module.write_text(before)
    assert gate.met >= 2
