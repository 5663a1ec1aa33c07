"""`etbuild plan --memory` says before a build what the build then makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from etbuild.cli import main
from tests.helpers import commands
from tests.helpers.manifests import net
from tests.integration import test_adapters

MODEL = net(
    "self.conv = torch.nn.Conv1d(8, 64, 3, padding=1)",
    "self.first, self.second = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)",
    "self.embedding = torch.nn.Embedding(512, 64)",
    'self.register_buffer("cache", torch.zeros(16, 64))',
    forward="return self.second(self.first(self.conv(x).transpose(1, 2)).relu())",
    ids="return self.second(self.first(self.embedding(x)).relu())",
    write="self.cache.copy_(self.cache * 0.5 + x); return self.cache + 1",
    read="return self.cache * x",
    empty="return x + x",
)
FORWARD = {"forward": {"example_inputs": [{"shape": [1, 8, 32]}]}}
STATE = {
    "write": {"entry": "write", "example_inputs": [{"shape": [64]}]},
    "read": {"entry": "read", "example_inputs": [{"shape": [64]}]},
}
_INT8 = {"pt2e": {"quantizers": [{"backend": "xnnpack"}], "calibration": "example_inputs"}}
_8DA4W = {"torchao": [{"config": "8da4w", "group_size": 32}, {"config": "int8", "layers": ["embedding"]}]}
_IDS = {"entry": "ids", "example_inputs": [{"shape": [1, 8], "dtype": "int64"}]}
_ANY = {"dynamic_shapes": [[None, None, {"dim": "length", "min": 2, "max": 64}]]}
CASES: dict[str, dict[str, Any]] = {
    "a delegate": {"methods": FORWARD},
    "a delegate without weights": {"methods": {"empty": {"entry": "empty", "example_inputs": [{"shape": [1, 16]}]}}},
    "no backend, a dynamic size": {"methods": {"forward": {**FORWARD["forward"], **_ANY, "partitioners": []}}},
    "methods with a state": {"methods": STATE},
    "methods that share a state": {"methods": STATE, "share_mutable_buffers": True},
    "named data": {"methods": {**FORWARD, "ids": _IDS}, "named_data": {"weights": {"parameters": ["*"]}}},
    "integers of 4 bits": {"methods": {"ids": {**_IDS, "quantize": _8DA4W}}},
    "calibrated integers": {"methods": {"forward": {**FORWARD["forward"], "quantize": _INT8}}},
    "a backend that compiles weights": {"methods": {"forward": {**FORWARD["forward"], "partitioners": ["coreml"]}}},
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def etbuild(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a verb on the manifest with some keys. Returns the exit code, and what it prints."""
    (tmp_path / "model.py").write_text(MODEL)

    def run(verb: str, keys: dict[str, Any], *options: str) -> tuple[int, str, str]:
        document = {
            "schema": "executorch-model/v1",
            "name": "net",
            "model": {"factory": "model:create"},
            "defaults": {"partitioners": ["xnnpack"]},
            **keys,
        }
        (tmp_path / "net.yaml").write_text(yaml.safe_dump(document))
        capfd.readouterr()
        code = main.main([verb, str(tmp_path / "net.yaml"), "--cache-dir", str(tmp_path / "cache"), *options])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("case", CASES)
def test_a_build_makes_what_was_said(case: str, etbuild: Run, tmp_path: Path) -> None:
    if case == "a backend that compiles weights":
        pytest.importorskip("coremltools")
    code, out, err = etbuild("plan", CASES[case], "--memory", "--json")
    assert code == 0, err
    [said] = json.loads(out)["programs"]
    assert bool(said["with_weights"]) == (case == "a backend that compiles weights")
    code, out, err = etbuild("build", CASES[case], "-o", str(tmp_path / "out"), "--json")
    assert code == 0, err
    built = json.loads(out)
    assert said["files"] == {
        each["file"]: each["size"] for each in built["artifacts"] if each["kind"] in ("program", "named_data")
    }
    report = json.loads((tmp_path / "out/net.report.json").read_bytes())
    assert {name: each["planned"] for name, each in said["methods"].items()} == {
        name: sum(each["memory"]) for name, each in report["methods"].items()
    }
    ran = {name for name, how in {**built["steps"], **built["methods"]}.items() if how == "run"}
    assert not ran & {"export", *said["methods"]}, "the build continues with what was made for the estimate"


def test_methods_that_share_a_state_count_it_once(etbuild: Run) -> None:
    state = 16 * 64 * 4
    methods = {"write": STATE["write"], "again": STATE["write"]}
    for keys, times in (({}, 2), ({"share_mutable_buffers": True}, 1)):
        _, out, _ = etbuild("plan", {"methods": methods, **keys}, "--memory", "--json")
        [said] = json.loads(out)["programs"]
        assert said["state"] == times * state
        assert said["planned"] >= said["state"]


def test_delegates_keep_as_much_in_other_files(etbuild: Run, tmp_path: Path) -> None:
    """A model with adapters is lowered with its weights."""
    layers = ["block.query", "head"]
    config = {"r": 2, "lora_alpha": 4, "target_modules": layers}
    for name, content in test_adapters.files("a", config, test_adapters.weights(layers, 2, 1)).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.py").write_text(test_adapters.MODEL)
    found = []
    for keys in ({}, {"named_data": {"weights": {"parameters": ["block.*.weight", "*.bias"]}}}):
        manifest = json.loads(test_adapters.manifest({"a": "a"}, **keys))
        code, out, err = etbuild("plan", manifest, "--memory", "--json")
        assert code == 0, err
        [said] = json.loads(out)["programs"]
        assert said["with_weights"].keys() == manifest["methods"].keys()
        found.append({name: each["kept"] for name, each in said["methods"].items()})
    assert found[0] == found[1]
    assert 0 < found[0]["forward"] < found[0]["forward_a"]


def test_a_process_keeps_what_was_said(etbuild: Run, tmp_path: Path) -> None:
    """Weights in XNNPACK's form, the values inside of its graphs, and the tables of its operators.

    Without the tables of `larger`, its ratio is 0.47 or 0.68."""
    (tmp_path / "model.py").write_text(
        net(
            "self.up, self.down = torch.nn.Linear(256, 4096), torch.nn.Linear(4096, 256)",
            "self.convs = torch.nn.Sequential(*(torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(16)))",
            "self.wide = torch.nn.ConvTranspose2d(2, 2, 4, stride=2, padding=1)",
            forward="return self.down(torch.nn.functional.silu(self.up(x)))",
            image="return self.convs(x).relu()",
            larger="return torch.nn.functional.interpolate(self.wide(x), scale_factor=1.25, mode='bilinear').relu()",
        )
    )
    layers = {"example_inputs": [{"shape": [1, 512, 256]}]}
    image = {"entry": "image", "example_inputs": [{"shape": [1, 8, 128, 128]}]}
    quantized = {"entry": "forward", "quantize": _8DA4W | {"torchao": _8DA4W["torchao"][:1]}, **layers}
    int8 = {"quantize": {"pt2e": {**_INT8["pt2e"], "quantizers": [{"backend": "xnnpack"}]}}}
    larger = {"entry": "larger", "example_inputs": [{"shape": [1, 2, 256, 256]}]}
    images = {"image": image, "image_int8": {**image, **int8}, "larger": larger}
    methods = {"forward": layers, "four_bits": quantized, **images}
    code, out, err = etbuild("plan", {"methods": methods}, "--memory", "--json")
    assert code == 0, err
    [said] = json.loads(out)["programs"]
    code, _, err = etbuild("build", {"methods": methods}, "-o", str(tmp_path / "out"))
    assert code == 0, err
    done = commands.etbuild("bench", tmp_path / "out", "--json", "--runs", "1", "--calls", "1")
    phases = json.loads(done.stdout)["phases"]
    assert len(phases) == len(methods)
    for phase in phases:
        method = said["methods"][phase["method"]]
        ratio = sum(method[key] for key in ("planned", "kept", "scratch")) / phase["program"]["memory"]["kept"]
        assert 0.72 < ratio < 1.25, (phase["method"], ratio, method, phase["program"]["memory"])


def test_variants_are_rows_of_one_table(etbuild: Run) -> None:
    variants: dict[str, Any] = {"none": {"defaults": {"partitioners": []}}}
    code, out, _ = etbuild("plan", {"methods": FORWARD, "variants": variants}, "--memory", "--variant", "all")
    assert code == 0
    heading, *rows = out.splitlines()
    assert heading.split()[:4] == ["program", "files", "planned", "of"]
    assert [row.split()[0] for row in rows[:2]] == ["net", "net.none"]
    assert rows[1].split()[5:7] == ["0", "B"], "views are no state"
    assert any(row.startswith("net: forward: float32[1, 32, 64] of XnnpackBackend takes ") for row in rows[2:]), out


def test_a_build_that_does_not_fit_is_refused(etbuild: Run) -> None:
    code, out, err = etbuild("plan", {"methods": FORWARD}, "--memory", "--within", "100MB")
    assert code == 3
    assert "(too large)" in out
    assert "error: building net takes about " in err
    assert "`--within` has 100.0 MB" in err


def test_a_model_that_does_not_fit_is_never_made(etbuild: Run, tmp_path: Path) -> None:
    """Its masks would take 3 GB here."""
    (tmp_path / "model.py").write_text(
        net(
            "self.linear = torch.nn.Linear(8, 8)",
            *(f'self.register_buffer("mask{n}", torch.ones(16384, 16384).tril())' for n in range(3)),
            forward="return self.linear(x)",
        ).replace("def create():", "def create():\n    assert not torch.ones(1).device.type == 'cpu'")
    )
    methods = {"forward": {"example_inputs": [{"shape": [1, 8]}]}}
    code, _, err = etbuild("plan", {"methods": methods}, "--memory", "--within", "2GB")
    assert code == 3
    assert "the tensors that the code of the model makes take 3.22 GB, and `--within` has 2.00 GB" in err


def test_a_variant_that_fails_hides_no_other(etbuild: Run) -> None:
    wrong = {"forward": {"example_inputs": [{"shape": [1, 7, 32]}]}}
    keys = {"methods": wrong, "variants": {"right": {"methods": FORWARD}}}
    code, out, err = etbuild("plan", keys, "--memory", "--variant", "all")
    assert code == 1
    assert [row.split()[0] for row in out.splitlines()[:2]] == ["program", "net.right"]
    assert ": methods.forward.example_inputs: net: " in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--within", "7GB", "--jobs", "2"], "these options go with --memory: --within, --cache-dir, --jobs"),
        (
            ["--memory", "--plan", "p", "--expect-name", "net", "--key-file", "k"],
            "these options go without --memory: --expect-name, --plan, --key-file",
        ),
    ],
)
def test_options_without_meaning_are_refused(options: list[str], message: str, etbuild: Run) -> None:
    code, _, err = etbuild("plan", {"methods": FORWARD}, *options)
    assert code == 2
    assert message in err
