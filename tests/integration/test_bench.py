"""`etbuild bench`: what is measured, on which inputs, and how two programs compare."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from etbuild import json_schema
from etbuild.cli import main
from etkit.running.benchmarking import results, workloads
from etkit.running.benchmarking.workloads import Workload
from etplugins.runtime import program_files
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session

MODEL = """\
import torch


class Net(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.depth = depth
        self.linear = torch.nn.Linear(64, 64)
        self.embedding = torch.nn.Embedding(16, 4)
        self.register_buffer("cache", torch.zeros(1, 8, 4))

    def forward(self, x, mask=None):
        for _ in range(self.depth):
            x = torch.tanh(self.linear(x))
        return x if mask is None else x * mask

    def decode(self, tokens, position):
        start = position[0].item()
        torch._check(start >= 0)
        torch._check(start + tokens.shape[1] <= 8)
        self.cache.narrow(1, start, tokens.shape[1]).copy_(self.embedding(tokens))
        return self.cache.sum((1, 2))


def create(depth=1):
    return Net(depth)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward:
    example_inputs: [{shape: [2, 64]}]
    dynamic_shapes: [[{dim: n, min: 1, max: 4}, null]]
  decode:
    example_inputs: [{shape: [1, 2], dtype: int64}, {shape: [1], dtype: int64}]
    dynamic_shapes: [[null, {dim: seq, min: 1, max: 8}], null]
constant_methods: {use_kv_cache: true, get_max_seq_len: 8, get_vocab_size: 16}
variants:
  deep: {model: {kwargs: {depth: 60}}}
"""


@dataclass
class Outcome:
    """What a command printed, and the results that it wrote as JSON."""

    code: int
    out: str
    err: str
    results: Any

    @property
    def phases(self) -> dict[str, Any]:
        return {each["phase"]: each for each in self.results["phases"]}


Bench = Callable[..., Outcome]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a manifest and its built programs."""
    directory = tmp_path_factory.mktemp("bench")
    (directory / "net.yaml").write_text(MANIFEST)
    (directory / "model.py").write_text(MODEL)
    cache = f"--cache-dir={directory / 'cache'}"
    arguments = ["build", str(directory / "net.yaml"), "--variant=all", "-o", str(directory / "out"), cache]
    assert main.main(arguments) == 0
    return directory


@pytest.fixture
def bench(project: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Bench:
    """Runs the command with a program of the project: `bench("out/net.pte")`."""

    def run(program: str, *arguments: str) -> Outcome:
        file = tmp_path / "results.json"
        file.unlink(missing_ok=True)
        written = [] if "--json" in arguments else ["--json", str(file)]
        short = [] if {"--calls", "--seconds"} & {*arguments} else ["--calls", "2"]
        short += [] if "--runs" in arguments or "--against" in " ".join(arguments) else ["--runs", "2"]
        code = main.main(["bench", str(project / program), *written, *short, *arguments])
        captured = capfd.readouterr()
        found = json.loads(file.read_text()) if file.exists() else None
        if found is not None:
            json_schema.validator("benchmark").validate(found)
        return Outcome(code, captured.out, captured.err, found)

    return run


def test_a_manifest_is_measured_on_its_examples_and_its_decoder_writes_texts(
    bench: Bench, project: Path, tmp_path: Path
) -> None:
    cache = f"--cache-dir={project / 'cache'}"
    done = bench("net.yaml", cache, "--svg", str(tmp_path / "plot.svg"), "--threads", "1", "--seconds", "0.01")
    assert done.code == 0, done.err
    forward, prefill, decode = (done.phases[name] for name in ("forward", "prefill", "decode"))
    assert (forward["inputs"], forward["inputs_from"]) == ([{"dtype": "float32", "shape": [2, 64]}], "manifest")
    assert (prefill["method"], prefill["tokens"], prefill["positions"]) == ("decode", 4, [0, 3])
    assert (decode["method"], decode["tokens"], decode["positions"]) == ("decode", 1, [4, 7])
    assert decode["program"]["calls"] == 4 * prefill["program"]["calls"]
    for each in (forward, prefill, decode):
        measured = each["program"]
        latency, memory = measured["latency"], measured["memory"]
        assert 0 < latency["min"] <= latency["median"] <= latency["p90"] <= latency["p99"] <= latency["max"]
        assert latency["mean_interval"] is None  # of two runs
        assert min(measured["load"].values()) > 0
        assert memory["peak"] >= memory["kept"] > 0
        assert memory["planned"] > 0
        assert measured["threads"] == 1
    assert prefill["program"]["tokens_per_second"] == pytest.approx(4 / prefill["program"]["latency"]["mean"])
    assert "tokens_per_second" not in forward["program"]
    assert "inputs of forward: the examples of the manifest" in done.out
    assert "decode: `decode` at the positions 4 to 7 of its cache" in done.out
    titles = [text.text for text in ET.parse(tmp_path / "plot.svg").getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert "prefill (4 tokens): share of the calls that took at most" in titles


def test_a_program_without_a_manifest_gets_inputs_of_its_signature_and_those_of_options(
    bench: Bench, capfd: Any
) -> None:
    random = bench("out/net.pte")
    assert random.phases["forward"]["inputs"] == [{"dtype": "float32", "shape": [4, 64]}]
    assert random.phases["forward"]["inputs_from"] == "random"
    assert random.phases["forward"]["program"]["calls"] == 4  # two calls in each of two runs
    own = bench("out/net.index.json", "--method", "decode", "--input", "0=[[3, 4, 5]]")
    assert list(own.phases) == ["decode"]
    assert own.phases["decode"]["inputs"][0] == {"dtype": "int64", "shape": [1, 3]}
    assert "tokens" not in own.phases["decode"]  # the user chose the inputs: the same call again and again
    lengths = bench("out/net.pte", "--method", "decode", "--prompt-tokens", "2", "--new-tokens", "3")
    assert [each["positions"] for each in lengths.phases.values()] == [[0, 1], [2, 4]]
    printed = bench("out/net.pte", "--method", "forward", "--json", "-")
    assert list(json.loads(printed.out)["phases"][0]["program"]["latency"]) == [
        *("min", "median", "p90", "p99", "max", "mean", "mean_interval")
    ]


def test_sizes_of_dynamic_dimensions(bench: Bench, project: Path) -> None:
    cache = f"--cache-dir={project / 'cache'}"
    done = bench("net.yaml", cache, "--method", "forward", "--dim", "n=3")
    assert done.phases["forward"]["inputs"] == [{"dtype": "float32", "shape": [3, 64]}]
    assert done.phases["forward"]["inputs_from"] == "sizes"
    wrong = bench("net.yaml", cache, "--method", "forward", "--dim", "n=9")
    assert (wrong.code, wrong.err.count("n=9: the dimension goes from 1 to 4")) == (2, 1)
    unknown = bench("net.yaml", cache, "--dim", "m=1")
    assert (unknown.code, unknown.err.count("--dim m: no method has this dimension")) == (2, 1)


def test_the_same_program_is_not_slower_and_one_of_sixty_times_the_work_is(bench: Bench, project: Path) -> None:
    only = ("--method", "forward", "--calls", "20", "--threads", "1")
    same = bench("out/net.pte", "--against", str(project / "out/net.pte"), *only, "--max-slowdown", "100%")
    assert same.code == 0, same.err
    assert "both programs have the same bytes" in same.out
    assert len(same.phases["forward"]["against"]["medians"]) == same.results["settings"]["runs"] == 12
    assert same.phases["forward"]["program"]["latency"]["mean_interval"] is not None
    deep, plain = "out/net.deep.pte", str(project / "out/net.pte")
    slower = bench(deep, "--against", plain, *only, "--max-slowdown", "100%")
    assert slower.code == 3
    assert slower.phases["forward"]["verdict"]["outcome"] == "slower"
    assert "forward: slower: " in slower.out
    assert "forward: slower than --max-slowdown 100.0% allows" in slower.err
    cache = f"--cache-dir={project / 'cache'}"
    faster = bench("net.yaml", cache, "--against-variant", "deep", *only, "--max-slowdown", "5", "--runs", "6")
    assert faster.code == 0, faster.err
    assert faster.phases["forward"]["verdict"]["outcome"] == "faster"
    assert (faster.results["program"]["file"], faster.results["against"]["file"]) == ("net.pte", "net.deep.pte")


def test_a_text_starts_at_the_beginning_of_the_cache_and_ends_with_it(project: Path) -> None:
    files = program_files.read(project / "out/net.pte")
    decoder = workloads.find_decoder(files, None, None)
    assert decoder is not None
    found = Workload({"decode": [torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1)]}, "random", decoder)
    # A text starts at the beginning of the cache again, and no call goes beyond its end.
    assert [(call.phase, int(call.inputs[1]), call.inputs[0].shape[1]) for call in found.calls] == [
        ("prefill", 0, 4),
        *(("decode", position, 1) for position in range(4, 8)),
    ]
    assert max(int(call.inputs[0].max()) for call in found.calls) < 16


def test_what_is_no_decoder_with_a_cache(project: Path) -> None:
    files = program_files.read(project / "out/net.pte")

    def of(**constants: Any) -> ProgramFiles:
        methods = dict(files.facts["methods"])
        for name, value in constants.items():
            methods[name] = {**methods["use_kv_cache"], "outputs": [{"type": "int", "value": value}]}
        return replace(files, facts={**files.facts, "methods": methods})

    assert workloads.find_decoder(of(use_kv_cache=False), None, None) is None
    assert workloads.find_decoder(of(get_max_seq_len=1), None, None) is None
    shorter = workloads.find_decoder(of(get_max_seq_len=6), None, None)
    assert shorter is not None
    assert (shorter.prompt, shorter.new) == (3, 3)


def test_a_decoder_that_takes_one_token_only_starts_at_the_first_position(project: Path) -> None:
    files = program_files.read(project / "out/net.pte")
    methods = dict(files.facts["methods"])
    token, position = methods["decode"]["inputs"]
    one: Any = {**token, "shape": [1, 1], "dynamic": False}
    encoded: Any = {"dtype": "float32", "shape": [1, 4, 4], "dynamic": True}
    methods["decode"] = {**methods["decode"], "inputs": [one, encoded, position]}
    decoder = workloads.find_decoder(replace(files, facts={**files.facts, "methods": methods}), None, None)
    assert decoder is not None
    assert (decoder.prefill, decoder.new, decoder.positions) == (None, 8, {"decode": (2, False)})
    inputs = [torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 4, 4), torch.zeros(1)]
    [phase] = results.phases(Workload({"decode": inputs}, "random", decoder), [])
    assert [int(call.inputs[2]) for call in phase.workload.calls] == [*range(8)]
    assert results._calls(phase)["positions"] == [0, 7]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["out/net.pte", "--method", "frward"], 2, "the program has no method `frward`\n    did you mean `forward`?"),
        (["out/net.pte", "--input", "0=[1]"], 2, "--input: the program has several methods"),
        (["out/net.pte", "--method", "forward", "--input", "1=[1]"], 2, "--input 1: `forward` takes 1 input,"),
        (["out/net.pte", "--method", "forward", "--input", "x"], 2, "--input x: expected NUMBER=VALUE"),
        (["out/net.pte", "--method", "forward", "--input", "0=[1]"], 2, "input 0 of `forward` has the shape [1]"),
        (["out/net.pte", "--method", "decode", "--input", "0=[[99]]"], 1, "the runtime cannot run `decode`"),
        (["out/net.pte", "--dim", "n=2"], 2, "--dim: only a manifest names dimensions"),
        (["out/net.pte", "--max-slowdown", "5%"], 2, "--max-slowdown needs --against"),
        (["out/net.pte", "--against", "nowhere.pte"], 2, "nowhere.pte: cannot read the file"),
        (["out/net.pte", "--against-variant", "deep"], 2, "--against-variant: only a manifest has variants"),
        (["out/net.pte", "--against", "x.pte", "--runs", "5"], 2, "--runs 5: a comparison needs at least 6 runs"),
        (["out/net.pte", "--prompt-tokens", "8"], 2, "--prompt-tokens 8: `decode` and its cache take 1 to 7 tokens"),
        (["out/net.pte", "--new-tokens", "7"], 2, "--new-tokens 7: the cache has 8 places, so 1 to 4 follow"),
        (["out/net.pte", "--method", "forward", "--new-tokens", "2"], 2, "these are not the texts of a decoder"),
        (["out/net.pte", "--method", "get_vocab_size"], 2, "`get_vocab_size` only returns constants"),
        (["out"], 2, "out: name one index of the directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_named(bench: Bench, arguments: list[str], code: int, message: str) -> None:
    done = bench(*arguments)
    assert (done.code, done.results) == (code, None), done.err
    assert message in done.err


def test_a_crash_of_the_runtime_names_the_method(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "load", lambda session, method: os.kill(os.getpid(), signal.SIGKILL))
    done = bench("out/net.pte", "--method", "forward")
    assert (done.code, "running `forward` of net.pte ended with SIGKILL" in done.err) == (1, True), done.err


def test_a_time_limit(project: Path) -> None:
    command = [sys.executable, "-m", "etbuild", "bench", str(project / "out/net.pte"), "--seconds", "600"]
    done = subprocess.run([*command, "--timeout", "5"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "the benchmark took longer than 5 s, the limit of `--timeout`" in done.stderr
