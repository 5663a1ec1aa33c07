"""The code that runs is the content that was digested."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from etbuild.errors import InputError
from etbuild.guard.reads import watched_reads
from etbuild.inputs.sources import UsedSources, read_sources
from etbuild.inputs.user_code import importable, load_callable
from etbuild.key.declared import Inputs
from etbuild.key.key import KeyFiles

MODEL = """\
# a comment, and a character: \u00e9
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        if x.sum() < -1e9:
            raise ValueError("too small")
        return x * 2

@torch.jit.script
def scripted(x: int) -> int:
    return x * 2

def create():
    return torch.nn.Identity()

def fail():
    raise ValueError("digested")  # the line that is shown
"""
OTHER = "raise RuntimeError('this is what the file holds by now')\n"


@pytest.fixture
def used(tmp_path: Path) -> UsedSources:
    (tmp_path / "digested.py").write_text(MODEL, "utf-8")
    return read_sources({"digested.py": tmp_path / "digested.py"})


@pytest.fixture
def edited(used: UsedSources) -> Iterator[UsedSources]:
    """Returns sources with a file that was edited after it was digested."""
    used.sources["digested.py"].write_text(OTHER)
    yield used
    assert not (used.sources["digested.py"].parent / "__pycache__").exists()


def test_an_edit_after_the_digest_does_not_run(edited: UsedSources) -> None:
    digest = KeyFiles.read(Inputs(), edited, {}).digests["sources"]["digested.py"]
    with importable(edited, [], watched_reads):
        create = load_callable("digested:create", ())
        assert isinstance(create(), torch.nn.Identity)
        assert sys.modules["digested"].scripted(2) == 4
    assert digest == hashlib.sha256(MODEL.encode()).hexdigest()


def test_tracebacks_and_inspect_show_what_runs(edited: UsedSources) -> None:
    with importable(edited, [], watched_reads):
        fail = load_callable("digested:fail", ())
        assert inspect.getsource(fail).startswith("def fail():\n    raise ValueError")
        assert inspect.getsource(sys.modules["digested"]) == MODEL
        with pytest.raises(ValueError, match="digested") as caught:
            fail()
        shown = "".join(traceback.format_exception(caught.value))
        assert "the line that is shown" in shown
    assert str(edited.sources["digested.py"]) not in linecache.cache


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_exported_is_what_runs(tmp_path: Path, strict: bool) -> None:
    text = MODEL.replace('        if x.sum() < -1e9:\n            raise ValueError("too small")\n', "")
    (tmp_path / "digested.py").write_text(text, "utf-8")
    used = read_sources({"digested.py": tmp_path / "digested.py"})
    (tmp_path / "digested.py").write_text(OTHER)
    with importable(used, [], watched_reads):
        net = load_callable("digested:Net", ())()
        program = torch.export.export(net, (torch.ones(2),), strict=strict)
    assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), 2.0))


def test_asserts_are_kept_under_any_option_of_python(tmp_path: Path) -> None:
    (tmp_path / "digested.py").write_text("assert False, 'kept'\n")
    script = f"""
from pathlib import Path
from etbuild.inputs.sources import read_sources
from etbuild.guard.reads import watched_reads
from etbuild.inputs.user_code import importable, load_callable
with importable(read_sources({{"digested.py": Path({str(tmp_path / "digested.py")!r})}}), [], watched_reads):
    load_callable("digested:create", ())
"""
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False)
    assert "AssertionError: kept" in done.stderr


CALLABLES = """\
import functools
from functools import partial
from os import system

import torch
from torch.nn import ReLU

class Base:
    @classmethod
    def made(cls):
        return cls()

class Net(Base):
    run = system

    @staticmethod
    def create():
        return Net()

    def __call__(self):
        return self

    def make(self):
        return self

@torch.no_grad()
def in_context():
    return Net()

@functools.wraps(torch.relu)
def wrapped():
    return Net()

@functools.cache
def cached():
    return Net()

bound = partial(Net)
net = Net()
of_lambda = lambda: Net()
"""


@pytest.fixture
def callables(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "callables.py").write_text(CALLABLES)
    with importable(read_sources({"callables.py": tmp_path / "callables.py"}), [], watched_reads):
        yield


@pytest.mark.parametrize(
    "name",
    ["Net", "Net.made", "Net.create", "in_context", "wrapped", "cached", "bound", "net", "net.make", "of_lambda"],
)
def test_a_manifest_calls_what_a_source_defines(name: str, callables: None) -> None:
    assert callable(load_callable(f"callables:{name}", ("model", "factory")))


@pytest.mark.parametrize(
    "name",
    [
        "system",
        "Net.run",
        "torch.os.system",
        "functools.partial",
        "partial",
        "ReLU",
        "Net.__subclasses__",
        "wrapped.__globals__.get",
        "torch.nn.ReLU",
    ],
)
def test_a_manifest_calls_nothing_that_a_source_imports(name: str, callables: None) -> None:
    with pytest.raises(InputError, match=f"`callables` does not define `{name}`"):
        load_callable(f"callables:{name}", ("model", "factory"))
