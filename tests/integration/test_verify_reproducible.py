"""Builds a program twice and compares the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from etbuild.plan.step_plans import LowerPlan
from etbuild.steps.saved_export import LoweringJob
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache
from etplugins.templates import one_by_one
from tests.helpers.manifests import net

from .conftest import MANIFEST, MODEL, Build, Outcome

EXACT = MODEL.replace(
    "return Net()", "net = Net()\n    for p in net.parameters():\n        p.data.fill_(0.5)\n    return net"
)
COUNTS = net('self.register_buffer("calls", torch.full((1,), 3.0))', forward="self.calls += 1\nreturn x * self.calls")
PORTABLE = MANIFEST.replace("[xnnpack]", "[]")  # imports and lowers faster


def verified(build: Build, model: str, manifest: str = MANIFEST, *options: str) -> Outcome:
    return build(manifest, "--verify-reproducible", *options, model=model)


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ("x = x + len(__import__('os').environ.get('TZ', ''))", "program."),
        ("x = x + __import__('time').time_ns() % 1_000_003", "program."),
        ("x = x + __import__('time').localtime().tm_yday", "program."),
    ],
    ids=["environment", "time", "date"],
)
def test_what_differs_is_named_and_nothing_is_published(build: Build, edit: str, field: str) -> None:
    model = EXACT.replace("        return self.linear(x)", f"        {edit}\n        return self.linear(x)")
    made = verified(build, model, PORTABLE)
    assert made.code == 1
    assert f"a second build differs in `net.pte`: {field}" in made.err
    assert "another directory, user, locale" in made.err
    assert made.files == []


def test_a_second_build_that_fails_is_reported(build: Build) -> None:
    made = verified(build, "import os\nassert os.environ.get('USER') != 'someone-else', 'not for you'\n" + EXACT)
    assert made.code == 1
    assert "a second build failed" in made.err
    assert "not for you" in made.err


def test_a_file_that_no_second_build_can_name_is_told(build: Build, tmp_path: Path) -> None:
    (tmp_path / "a=b.safetensors").write_bytes(save({"linear.weight": torch.ones(4, 8), "linear.bias": torch.ones(4)}))
    manifest = PORTABLE.replace('factory: "model:create"', 'factory: "model:create"\n  weights: a=b.safetensors')
    made = verified(build, EXACT, manifest, "--root", str(tmp_path))
    assert made.code == 2
    assert "model.weights: `a=b.safetensors` has a `=`, which `--data=NAME=FILE` cannot take" in made.err


def test_only_a_verified_program_is_kept(build: Build, tmp_path: Path) -> None:
    """The first program is sound; the second depends on the path of its source."""
    sound, other = tmp_path / "sound", tmp_path / "other"
    made = verified(build, EXACT, MANIFEST, "--cache-dir", str(sound))
    assert (made.code, made.files) == (0, ["net.index.json", "net.pte", "net.report.json"])
    assert cache_upkeep.info(Cache(sound)).records == {"program": 1}
    model = EXACT.replace("fill_(0.5)", "fill_(len(__file__))")
    made = verified(build, model, PORTABLE, "--cache-dir", str(other))
    assert (made.code, made.files) == (1, [])
    assert "a second build differs in `net.pte`" in made.err
    assert cache_upkeep.info(Cache(other)).records == {}


def test_a_difference_that_does_not_reach_the_program_is_named(build: Build) -> None:
    """Other machines would lower such an export again."""
    named = "net = type(f'Net{__import__(\"time\").time_ns()}', (Net,), {})()"
    made = verified(build, EXACT.replace("net = Net()", named), PORTABLE)
    assert (made.code, made.files) == (1, [])
    assert "a second build differs in `export/methods/forward.pt2`: archive/models/model.json" in made.err
    assert "the artifacts are equal, but a cache of another machine" in made.err


def test_methods_that_were_lowered_by_themselves_are_compared(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    two = MANIFEST.replace("defaults:", "  again: {entry: forward, example_inputs: [{shape: [1, 8]}]}\ndefaults:")
    made = verified(build, COUNTS, two)  # lowered with the content of its weights
    assert made.code == 0, made.err
    made = verified(build, EXACT, two)
    assert made.code == 0, made.err
    lower_methods = one_by_one._lower_methods

    def damaged(job: LoweringJob[LowerPlan], directories: dict[str, Path], *rest: Any) -> None:
        lower_methods(job, directories, *rest)
        (directories["again"] / "blobs/more").write_bytes(b"")

    monkeypatch.setattr(one_by_one, "_lower_methods", damaged)
    made = verified(build, EXACT, two)
    assert (made.code, made.files) == (1, [])
    assert "a second build differs in `again/blobs/more`: only the first build made it" in made.err
