"""Named data of backends: one blob for a key, with all requested alignments, also under a tag of the manifest."""

from __future__ import annotations

import math

import pytest

from etbuild import backends
from tests.helpers.manifests import HEAD
from tests.integration.conftest import Build, Outcome

from .conftest import BACKEND, Lower, take
from .three_methods import MODEL, methods

WEIGHTS = 'named_data: {weights: {parameters: ["*"]}}\n'
BLOB = b"blob" * 8


@pytest.fixture(params=["together", "merged"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options to lower methods together, or one by one as for a separable backend of a package."""
    if request.param == "together":
        return []
    monkeypatch.setattr(backends.BACKENDS["custom"], "separable", True)
    return ["--jobs", "2"]


def asking(one: str, other: str, tag: str = "-") -> str:
    """Returns two methods whose backend stores one blob, each with `KEY,... ALIGNMENT,...`: in the program, or under a
    tag."""
    takers = (take("cos, exp", "AligningBackend", f'"{each} {tag} "') for each in (one, other))
    return methods(**dict(zip(("b", "scaled"), (f"[{taker}]" for taker in takers), strict=True)))


def offset(outcome: Outcome, file: str) -> int:
    """Returns the offset of the blob from the beginning of the file, in bytes."""
    assert outcome.code == 0, outcome.err
    assert "lowered together" not in outcome.err
    content = outcome.read(file)
    assert content.count(BLOB) == 1
    return content.index(BLOB)


@pytest.mark.parametrize(
    ("one", "other", "tag", "alignment"),
    [
        ("key 4096", "key 16", "-", 4096),
        ("key 4096", "key 16", "weights", 4096),
        ("key 16", "key 4096", "weights", 4096),
        ("key 48", "key 1000", "-", 6000),
        ("key 48", "key 1000", "weights", 6000),
        ("a,b 16,4096", "c 32", "weights", 4096),
        ("key none", "other 4096", "-", 4096),
    ],
)
def test_a_blob_has_all_alignments_that_it_is_asked_for_with(
    lower: Lower, road: list[str], one: str, other: str, tag: str, alignment: int
) -> None:
    outcome, _ = lower(asking(one, other, tag) + WEIGHTS, MODEL, *road)
    assert offset(outcome, "net.pte" if tag == "-" else "net.weights.ptd") % alignment == 0


def test_a_store_that_a_backend_adds_to_twice_keeps_all_alignments(lower: Lower) -> None:
    for alignments in (("16", "4096"), ("4096", "48")):
        takers = [take("cos, exp", "AddingBackend", f'"{each} "') for each in alignments]
        outcome, _ = lower(methods(b=f"[{takers[0]}]", scaled=f"[{takers[1]}]"), MODEL)
        assert offset(outcome, "net.pte") % math.lcm(*map(int, alignments)) == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("key 0", "AligningBackend of `scaled` asks for named data `key` at an alignment of 0 bytes"),
        (
            "key 4093",
            "without a common multiple up to 2 MiB: 4093 by AligningBackend of `scaled`, 4096 by AligningBackend",
        ),
    ],
)
def test_an_alignment_that_cannot_be_is_refused(lower: Lower, road: list[str], other: str, message: str) -> None:
    outcome, _ = lower(asking("key 4096", other), MODEL, *road)
    assert (outcome.code, outcome.files) == (1, [])
    assert message in outcome.err


def test_one_key_with_two_contents_names_both_backends(lower: Lower, road: list[str]) -> None:
    takers = {"b": take("cos", "ClashingBackend"), "scaled": take("exp", "OtherClashingBackend")}
    outcome, _ = lower(methods(**{name: f"[{taker}]" for name, taker in takers.items()}), MODEL, *road)
    assert (outcome.code, outcome.files) == (1, [])
    assert (
        "model.yaml:6:59: methods.scaled.partitioners: ClashingBackend of `b` and OtherClashingBackend of `scaled` "
        "store different data under the key `everything`"
    ) in outcome.err


def test_a_tag_that_the_manifest_does_not_have_is_refused(lower: Lower, road: list[str]) -> None:
    for named_data in ("", WEIGHTS):
        outcome, _ = lower(asking("key 16", "key 16", "own") + named_data, MODEL, *road)
        assert (outcome.code, outcome.files) == (1, [])
        assert ".partitioners: AligningBackend puts named data under the tag `own`" in outcome.err
        assert '`named_data: {own: {parameters: ["*"]}}`' in outcome.err


def test_a_tag_that_is_split_is_not_a_backends_to_choose(lower: Lower) -> None:
    split = 'named_data: {weights: {parameters: ["*"], shard_size: 16}}\n'
    outcome, _ = lower(asking("key 16", "key 16", "weights") + split, MODEL)
    assert (outcome.code, outcome.files) == (1, [])
    assert "under the tag `weights`, which is split into shards by weight names" in outcome.err


def test_a_clash_of_one_method_with_itself_is_named_too(build: Build, road: list[str]) -> None:
    manifest = HEAD + methods(a=f"[{take('sin, cos', 'ClashingBackend')}]", b="[]")
    outcome = build(manifest, *road, model=MODEL, demo_backend=BACKEND)
    assert (outcome.code, outcome.files) == (1, [])
    assert "ClashingBackend of `a` and ClashingBackend of `a` store different data" in outcome.err
