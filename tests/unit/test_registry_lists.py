"""Lists that a registry sends in parts: of tags, and of what refers to a manifest. Nobody has to trust them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count

import pytest

from etbuild.errors import BuildError, InputError
from etkit.registry.oci import reference, registry
from etkit.registry.oci.descriptors import INDEX, MANIFEST, Descriptor
from etkit.registry.oci.reference import Access
from tests.helpers.http_server import Answer, serving

PLACE = "/v2/a/b/tags/list"
SUBJECT = Descriptor.of(MANIFEST, b"subject")


def asked(answer: Callable[[str], Answer], ask: Callable[[registry.Repository], object]) -> object:
    """What a question to a registry gives that answers each path as a function says."""

    def whole(method: str, path: str, login: str) -> Answer:
        return (200, {}, b"") if path == "/v2/" else answer(path)

    with serving(whole) as server:
        where = reference.parse(f"127.0.0.1:{server.port}/a/b")
        with registry.Repository(where, Access(stall_seconds=5)) as repository:
            return ask(repository)


def page(tags: object, link: str | None = None) -> Answer:
    headers = {"Link": f'<{link}>; rel="next"'} if link else {}
    return 200, headers, json.dumps({"name": "a/b", "tags": tags}).encode()


def test_tags_come_in_parts() -> None:
    pages = {
        f"{PLACE}?n=1000": page(["v2"], f"{PLACE}?last=v2&n=1000"),
        f"{PLACE}?last=v2&n=1000": page(["v1", "v2"], "list?last=v1"),
        f"{PLACE}?last=v1": page(None),
    }
    assert asked(pages.__getitem__, registry.Repository.tags) == ["v1", "v2"]


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (f"{PLACE}?n=1000", "has no end"),
        ("http://localhost:1/v2/a/b/tags/list?n=1", "goes on at http://localhost:1/"),
        ("/v2/other/tags/list?n=1", "which is elsewhere"),
        ("/v2/a/b/../../other/tags/list?n=1", "which is elsewhere"),
        ("/v2/a/b/manifests/v1", "which is elsewhere"),
    ],
)
def test_a_list_of_tags_that_leads_elsewhere_is_refused(link: str, words: str) -> None:
    with pytest.raises(BuildError, match=words):
        asked(lambda path: page(["v1"], link), registry.Repository.tags)


def test_a_list_of_tags_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MOST_TAGS", 40)
    numbers = count()
    with pytest.raises(BuildError, match="has no end"):
        asked(lambda path: page([f"v{next(numbers)}"], f"{PLACE}?last={next(numbers)}"), registry.Repository.tags)
    with pytest.raises(BuildError, match="has no end"):
        asked(lambda path: page([f"v{number}" for number in range(41)]), registry.Repository.tags)


@pytest.mark.parametrize(
    "tags", [["v1\x1b[2J"], ["-v"], [""], [1], [None], ["a b"], "v 1", {"a/b": 1}, 7, ["v" * 129], ["v1\n"]]
)
def test_tags_that_cannot_be_tags_are_refused(tags: object) -> None:
    with pytest.raises(BuildError, match="tag") as told:
        asked(lambda path: page(tags), registry.Repository.tags)
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"<html>", b"[" * 10_000])
def test_a_list_of_tags_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BuildError, match="cannot be listed"):
        asked(lambda path: (200, {}, data), registry.Repository.tags)


def test_a_repository_that_is_not_there_has_no_tags() -> None:
    with pytest.raises(InputError, match="no such repository"):
        asked(lambda path: (404, {}, b""), registry.Repository.tags)


def listed(*kinds: str) -> bytes:
    blobs = [{**Descriptor.of(MANIFEST, kind.encode()).json(), "artifactType": kind} for kind in kinds]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": blobs}).encode()


@pytest.mark.parametrize("interface", [True, False], ids=["interface", "tag"])
def test_referrers_come_from_the_interface_or_from_the_tag(interface: bool) -> None:
    place = f"/v2/a/b/referrers/{SUBJECT.digest}" if interface else f"/v2/a/b/manifests/sha256-{SUBJECT.sha256}"
    answers = {place: (200, {"Content-Type": INDEX}, listed("x/one", "x/two"))}
    found = asked(lambda path: answers.get(path, (404, {}, b"")), lambda one: one.referrers(SUBJECT, "x/two"))
    assert found == [Descriptor.of(MANIFEST, b"x/two")]


def test_a_manifest_without_referrers() -> None:
    assert asked(lambda path: (404, {}, b""), lambda one: one.referrers(SUBJECT, "x/y")) == []


def parts(links: list[str | None]) -> Callable[[str], Answer]:
    """The answers of a registry whose list of referrers has a part for each link. Each part lists two referrers."""
    place = f"/v2/a/b/referrers/{SUBJECT.digest}"

    def answer(path: str) -> Answer:
        number = int(path.partition("?part=")[2] or 0) if path.startswith(place) else len(links)
        if number >= len(links):
            return 404, {}, b""
        link = links[number]
        headers = {"Link": f'<{link}>; rel="next"'} if link else {}
        return 200, {"Content-Type": INDEX, **headers}, listed(f"x/{number}", "x/y")

    return answer


@pytest.mark.parametrize(
    "link",
    [
        "<?part=1>; rel=next",
        "<?part=1>; title=\"a, b\"; REL='next'",
        '<?part=1>; rel="last next"',
        '<?more;part=1>; rel="next"',
        '<?part=0>; rel="first", <?part=1>; rel="next"',
        f'</v2/a/b/referrers/{SUBJECT.digest.replace(":", "%3A")}?part=1>; rel="next"',
    ],
)
def test_the_next_part_is_found_in_each_form_of_a_link(link: str) -> None:
    first = f"/v2/a/b/referrers/{SUBJECT.digest}"

    def answer(path: str) -> Answer:
        if path == first:
            return 200, {"Content-Type": INDEX, "Link": link}, listed("x/1")
        return (200, {"Content-Type": INDEX}, listed("x/2")) if path.endswith("part=1") else (404, {}, b"")

    assert asked(answer, lambda one: one.referrers(SUBJECT, "x/2")) == [Descriptor.of(MANIFEST, b"x/2")]


def test_referrers_come_in_parts() -> None:
    place = f"/v2/a/b/referrers/{SUBJECT.digest}"
    answer = parts([f"{place}?part=1", "?part=2", None])
    assert asked(answer, lambda one: one.referrers(SUBJECT, "x/2")) == [Descriptor.of(MANIFEST, b"x/2")]
    assert asked(answer, lambda one: one.referrers(SUBJECT, "x/y")) == [Descriptor.of(MANIFEST, b"x/y")] * 3


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (f"/v2/a/b/referrers/{SUBJECT.digest}?part=0", "has no end"),
        (f"http://localhost:1/v2/a/b/referrers/{SUBJECT.digest}?part=1", "goes on at http://localhost:1/"),
        (f"https://127.0.0.1/v2/a/b/referrers/{SUBJECT.digest}?part=1", "which is elsewhere"),
        (f"/v2/other/referrers/{SUBJECT.digest}?part=1", "which is elsewhere"),
        (f"/v2/a/b/referrers/{SUBJECT.digest}/../x?part=1", "which is elsewhere"),
    ],
)
def test_a_list_of_referrers_that_leads_elsewhere_is_refused(link: str, words: str) -> None:
    with pytest.raises(BuildError, match=words):
        asked(parts([link] * 3), lambda one: one.referrers(SUBJECT, "x/y"))


def test_a_list_of_referrers_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"/v2/a/b/referrers/{SUBJECT.digest}"
    links: list[str | None] = [f"{place}?part={number + 1}" for number in range(99)]
    for limit in ("_MOST_REFERRERS", "_MOST_PARTS"):
        monkeypatch.undo()
        monkeypatch.setattr(registry, limit, 20)
        with pytest.raises(BuildError, match="has no end"):
            asked(parts(links), lambda one: one.referrers(SUBJECT, "x/y"))


def test_a_later_part_that_is_missing_is_an_error() -> None:
    with pytest.raises(BuildError, match="404"):
        asked(parts([f"/v2/a/b/referrers/{SUBJECT.digest}?part=1"]), lambda one: one.referrers(SUBJECT, "x/y"))


@pytest.mark.parametrize("data", [b"{}", b"[1]", b"x", listed("x/y").replace(b"sha256:", b"sha512:")])
def test_damaged_referrers_are_refused(data: bytes) -> None:
    with pytest.raises(BuildError, match="not a list of referrers"):
        asked(lambda path: (200, {"Content-Type": INDEX}, data), lambda one: one.referrers(SUBJECT, "x/y"))
