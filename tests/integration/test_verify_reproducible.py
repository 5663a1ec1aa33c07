"""Builds a program twice and compares the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from etbuild.cache.store import Cache

from .conftest import MANIFEST, MODEL, Build, Outcome

EXACT = MODEL.replace(
    "return Net()", "net = Net()\n    for p in net.parameters():\n        p.data.fill_(0.5)\n    return net"
)


def verified(build: Build, model: str, manifest: str = MANIFEST, *options: str) -> Outcome:
    return build(manifest, "--verify-reproducible", *options, model=model)


def test_a_sound_model_passes(build: Build) -> None:
    made = verified(build, EXACT)
    assert (made.code, made.files) == (0, ["net.index.json", "net.pte", "net.report.json"])


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ("x = x + len(__import__('os').environ.get('TZ', ''))", "program."),
        ("x = x + len(__file__)", "program."),
        ("x = x + __import__('time').time_ns() % 1_000_003", "program."),
        ("x = x + __import__('time').localtime().tm_yday", "program."),
    ],
    ids=["environment", "path", "time", "date"],
)
def test_what_differs_is_named_and_nothing_is_published(build: Build, edit: str, field: str) -> None:
    made = verified(
        build, EXACT.replace("        return self.linear(x)", f"        {edit}\n        return self.linear(x)")
    )
    assert made.code == 1
    assert f"a second build differs in `net.pte`: {field}" in made.err
    assert "another directory, user, locale" in made.err
    assert made.files == []


def test_a_second_build_that_fails_is_reported(build: Build) -> None:
    made = verified(build, "import os\nassert os.environ.get('USER') != 'someone-else', 'not for you'\n" + EXACT)
    assert made.code == 1
    assert "a second build failed" in made.err
    assert "not for you" in made.err


def test_only_a_verified_program_is_kept(build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from etbuild.cli import main

    for number, model in enumerate((EXACT, EXACT.replace("fill_(0.5)", "fill_(len(__file__))"))):
        root = tmp_path / str(number)
        root.mkdir()
        (root / "model.yaml").write_text(MANIFEST)
        (root / "model.py").write_text(model)
        where = ["--cache-dir", str(root / "cache"), "-o", str(root / "out")]
        code = main.main(["build", str(root / "model.yaml"), "--verify-reproducible", *where])
        assert (code, Cache(root / "cache").info().records) == ((1, {}) if number else (0, {"program": 1}))
