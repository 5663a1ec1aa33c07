"""Registries that break, lie or refuse: the right files or a clear error, and never a wrong file under its name."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tests.registry
from etkit.building import lockfile
from etkit.registry.oci import attempts, registry
from etkit.registry.oci import layout as layouts
from etkit.registry.oci import reference as references
from etkit.registry.oci.descriptors import MANIFEST, Descriptor
from etkit.registry.oci.reference import Access
from tests.helpers import commands

from .conftest import BACKBONE, Run
from .servers import Fault, Registry, Relay, Tokens, docker_config


def test_each_fault_of_the_table_has_its_test() -> None:
    rows = re.findall(r"\| (\w+): (\w+) \|$", tests.registry.__doc__ or "", re.MULTILINE)
    assert len(rows) == (tests.registry.__doc__ or "").count("test_") // 2
    for module, name in rows:
        assert callable(getattr(importlib.import_module(f"tests.registry.{module}"), name)), name


BLOB = hashlib.sha256(BACKBONE).hexdigest()


def flipped(data: bytes) -> bytes:
    return data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]


@pytest.fixture
def pushed(server: Registry, packages: Path, repository: str, run: Run, relay: Relay) -> str:
    """A package in the registry, as it is seen through the relay."""
    run("push", packages / "first", f"{server.address}/{repository}:v1")
    return f"{relay.address}/{repository}:v1"


def assert_complete(directory: Path, pte: bytes = b"one") -> None:
    assert (directory / "first.weights.ptd").read_bytes() == BACKBONE
    assert (directory / "first.pte").read_bytes() == pte * 100
    assert_tidy(directory)


def assert_tidy(directory: Path) -> None:
    """Nothing unfinished is left."""
    assert not [path.name for path in directory.glob("*") if path.name.startswith(".")] if directory.exists() else True


def assert_empty(directory: Path) -> None:
    assert not directory.exists() or list(directory.iterdir()) == []


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_errors_that_pass_are_waited_out(pushed: str, relay: Relay, status: int, run: Run, tmp_path: Path) -> None:
    relay.faults = [Fault("GET", "/manifests/", times=2, status=status), Fault("GET", BLOB, times=2, status=status)]
    run("pull", pushed, "-o", tmp_path)
    assert_complete(tmp_path)


def test_errors_that_pass_do_not_break_a_push(
    server: Registry, packages: Path, relay: Relay, repository: str, run: Run
) -> None:
    relay.faults = [
        Fault(method, f"/{repository}/", times=2, status=503) for method in ("HEAD", "POST", "PATCH", "PUT")
    ]
    run("push", packages / "first", f"{relay.address}/{repository}:v1")
    run("verify", f"{server.address}/{repository}:v1")


def test_retry_after_is_obeyed(pushed: str, relay: Relay, run: Run, tmp_path: Path) -> None:
    relay.faults = [Fault("GET", BLOB, times=1, status=429, headers={"Retry-After": "1"})]
    start = time.monotonic()
    run("pull", pushed, "-o", tmp_path)
    assert time.monotonic() - start >= 1
    assert_complete(tmp_path)


def test_a_long_retry_after_has_a_limit(
    pushed: str, relay: Relay, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "LONGEST_WAIT_SECONDS", 0.1)
    relay.faults = [Fault("GET", BLOB, times=1, status=429, headers={"Retry-After": "100000"})]
    run("pull", pushed, "-o", tmp_path)
    assert_complete(tmp_path)


@pytest.mark.parametrize("status", [400, 404, 410, 500])
def test_errors_that_stay_are_told(pushed: str, relay: Relay, status: int, run: Run, tmp_path: Path) -> None:
    relay.faults = [Fault("GET", BLOB, status=status)]
    assert f"status {status}" in run("pull", pushed, "-o", tmp_path, expect=1)
    assert_empty(tmp_path)


@pytest.mark.parametrize(("status", "words"), [(401, "wants a login"), (403, "does not allow this")])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PATCH", "PUT"])
def test_a_refusal_is_told(
    server: Registry, packages: Path, relay: Relay, repository: str, run: Run, status: int, words: str, method: str
) -> None:
    relay.faults = [Fault(method, f"/{repository}/", status=status)]
    verb = ["verify", f"{relay.address}/{repository}:v1"]
    if method != "GET":
        verb = ["push", str(packages / "first"), verb[1]]
    assert words in run(*verb, expect=2)


def test_a_broken_download_continues_where_it_broke(pushed: str, relay: Relay, run: Run, tmp_path: Path) -> None:
    relay.faults = [Fault("GET", BLOB, times=1, cut=2_000_000)]
    run("pull", pushed, "-o", tmp_path)
    assert_complete(tmp_path)
    assert relay.ranges == ["bytes=2000000-"]
    assert relay.received < len(BACKBONE)


def test_a_registry_without_ranges_sends_the_blob_again(pushed: str, relay: Relay, run: Run, tmp_path: Path) -> None:
    for verb in (["pull", pushed, "-o", str(tmp_path)], ["verify", pushed]):
        relay.faults = [Fault("GET", BLOB, times=1, cut=2_000_000), Fault("GET", BLOB, whole=True)]
        run(*verb)
    assert_complete(tmp_path)


def test_a_registry_that_sends_another_part_is_refused(pushed: str, relay: Relay, run: Run, tmp_path: Path) -> None:
    relay.faults = [Fault("GET", BLOB, times=1, cut=2_000_000), Fault("GET", BLOB, times=1, change=lambda _: BACKBONE)]
    told = run("pull", pushed, "-o", tmp_path, expect=1)  # it says that it sends a part, and sends everything
    assert "more than the" in told
    assert_empty(tmp_path)


def test_a_blob_that_always_ends_early_is_an_error(pushed: str, relay: Relay, run: Run, tmp_path: Path) -> None:
    relay.faults = [Fault("GET", BLOB, cut=1000)]
    told = run("pull", pushed, "-o", tmp_path, expect=1)
    assert "cannot be fetched" in told
    assert_empty(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flipped, "other content than the digest"),
        (lambda data: data[:-1], "cannot be fetched"),
        (lambda data: data + b"x", "more than the"),
        (lambda data: b"", "cannot be fetched"),
    ],
    ids=["flipped", "truncated", "longer", "empty"],
)
def test_a_damaged_blob_is_refused(
    pushed: str, relay: Relay, run: Run, tmp_path: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    (tmp_path / "first.weights.ptd").write_bytes(b"old")
    relay.faults = [Fault("GET", BLOB, change=change)]
    assert words in run("pull", pushed, "-o", tmp_path, expect=1)
    assert [path.name for path in tmp_path.iterdir()] == ["first.weights.ptd"]
    assert (tmp_path / "first.weights.ptd").read_bytes() == b"old"
    assert words in run("verify", pushed, expect=1)


def edit(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        content = json.loads(data)
        change(content)
        return json.dumps(content).encode()

    return changed


def test_a_manifest_with_another_digest_is_refused(
    pushed: str, relay: Relay, run: Run, packages: Path, repository: str, tmp_path: Path
) -> None:
    def climb(data: bytes) -> bytes:
        return data.replace(b'"first.pte"', b'"../st.pte"')

    index = json.loads((packages / "first/index.json").read_bytes())["manifests"][0]["digest"]
    root = json.loads((packages / "first/blobs/sha256" / index.partition(":")[2]).read_bytes())
    relay.faults = [Fault("GET", root["manifests"][0]["digest"], change=climb)]
    assert "other content than the digest" in run("pull", pushed, "-o", tmp_path / "out", expect=1)
    relay.faults = [Fault("GET", index, change=lambda data: data.replace(b'"first"', b'"worst"'))]
    by_digest = f"{relay.address}/{repository}@{index}"
    assert "other content than the digest" in run("pull", by_digest, "-o", tmp_path / "out", expect=1)
    assert_empty(tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda index: index["manifests"][0].update(digest="sha256:" + "0" * 64), "404"),
        (lambda index: index["manifests"][0].update(digest="sha512:" + "0" * 128), "must be a sha256"),
        (lambda index: index["manifests"][0].update(digest="sha256:../../x"), "must be a sha256"),
        (lambda index: index["manifests"][0].update(size=1), "more than the 1 bytes"),
        (lambda index: index["manifests"][0].update(size=10**12), "at most"),
        (lambda index: index["manifests"][0].update(mediaType="text/html"), "text/html"),
        (lambda index: index.update(manifests=[]), "must not be empty"),
        (lambda index: index.update(manifests=index["manifests"] * 2), "twice"),
        (lambda index: index.clear(), "not a package"),
    ],
)
def test_an_index_that_lies_is_refused(
    pushed: str, relay: Relay, run: Run, tmp_path: Path, change: Callable[[Any], object], words: str
) -> None:
    relay.faults = [Fault("GET", "/manifests/v1", change=edit(change))]
    code = 2 if words in ("must be a sha256", "text/html", "must not be empty", "twice", "not a package") else 1
    assert words in run("pull", pushed, "-o", tmp_path, expect=code)
    assert_empty(tmp_path)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"<html>", b"\xff", b"[" * 5000, b"x" * (5 << 20)])
def test_an_index_that_is_none_is_refused(pushed: str, relay: Relay, run: Run, tmp_path: Path, data: bytes) -> None:
    relay.faults = [Fault("GET", "/manifests/v1", change=lambda _: data)]
    run("pull", pushed, "-o", tmp_path, expect=1 if len(data) > 1 << 20 else 2)
    assert_empty(tmp_path)


def test_a_failed_pull_continues_where_it_ended(
    server: Registry, packages: Path, relay: Relay, repository: str, run: Run, tmp_path: Path
) -> None:
    """What has arrived waits in the local cache. It is not fetched again."""
    run("push", packages / "first", f"{server.address}/{repository}:v1")
    pulled = ["pull", f"{relay.address}/{repository}:v1", "-o", tmp_path / "out", "--jobs", 1]
    relay.faults = [Fault("GET", hashlib.sha256(b"{}\n" + b"one" * 100).hexdigest(), status=404)]  # the report
    run(*pulled, expect=1)
    assert_empty(tmp_path / "out")
    relay.faults = [Fault("GET", hashlib.sha256(b"one" * 100).hexdigest(), status=404)]  # the program, which is there
    assert "404" in run(*pulled, "--cache-dir", tmp_path / "another-cache", expect=1)
    run(*pulled)
    assert_complete(tmp_path / "out")


def test_programs_appear_together_or_not_at_all(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    """A directory has the name of a file of the second program."""
    run("push", packages / "both", f"{server.address}/{repository}:v1")
    (tmp_path / "second.pte").mkdir()
    (tmp_path / "second.pte/mine").write_bytes(b"mine")
    (tmp_path / "first.pte").write_bytes(b"old")
    told = run("pull", f"{server.address}/{repository}:v1", "-o", tmp_path, expect=1)
    assert "second.pte: cannot write the file" in told
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["first.pte", "mine", "second.pte"]
    assert (tmp_path / "first.pte").read_bytes() == b"old"


def push_as_a_stranger(
    reference: str, layout: Path, change_index: Callable[[Any], object], change_manifest: Callable[[Any], object]
) -> None:
    """Pushes a package of one program whose documents somebody has changed who gives them digests that fit."""
    blobs = layout / "blobs/sha256"

    def changed(sha256: str, change: Callable[[Any], object]) -> Descriptor:
        data = edit(change)((blobs / sha256).read_bytes())
        made = Descriptor.of("x/y", data)
        (blobs / made.sha256).write_bytes(data)
        return made

    def refer(entry: Any, blob: Descriptor) -> None:
        entry.update(digest=blob.digest, size=blob.size)

    content = layouts.read(layout)
    index = changed(content.programs[0].index.sha256, change_index)
    lock = Descriptor.of("x/y", lockfile.encoded(lockfile.lock(json.loads((blobs / index.sha256).read_bytes()))))
    (blobs / lock.sha256).write_bytes(lockfile.encoded(lockfile.lock(json.loads((blobs / index.sha256).read_bytes()))))

    def adapt(manifest: Any) -> None:
        refer(manifest["config"], index)
        refer(manifest["layers"][-1], lock)
        change_manifest(manifest)

    manifest = changed(content.programs[0].manifest.sha256, adapt)
    with registry.Repository(references.parse(reference), Access()) as repository:
        for path in blobs.iterdir():
            repository.upload(Descriptor("x/y", path.name, path.stat().st_size), path, lambda _: None)
        for blob, name in ((manifest, manifest.digest), (manifest, "v1")):
            made = Descriptor(MANIFEST, blob.sha256, blob.size)
            repository.put_document(name, made, (blobs / blob.sha256).read_bytes())


def rename(entry: Any, name: str) -> None:
    entry.update({"file": name} if "file" in entry else {"annotations": {"org.opencontainers.image.title": name}})


@pytest.mark.parametrize(
    ("change_index", "change_manifest", "words"),
    [
        (lambda index: None, lambda manifest: None, None),
        (
            lambda index: rename(index["artifacts"][0], "../first.pte"),
            lambda manifest: rename(manifest["layers"][0], "../first.pte"),
            "does not fit",
        ),
        (
            lambda index: None,
            lambda manifest: rename(manifest["layers"][0], "../first.pte"),
            "which its index does not",
        ),
        (
            lambda index: None,
            lambda manifest: manifest["layers"][0].update(digest=manifest["layers"][1]["digest"]),
            "which its index does not",
        ),
        (lambda index: None, lambda manifest: manifest["annotations"].update(x="y"), "is not that of its index"),
    ],
    ids=["untouched", "climbing", "climbing manifest", "wrong digest", "another annotation"],
)
def test_a_pushed_package_that_lies_is_refused(
    server: Registry,
    builds: Path,
    repository: str,
    run: Run,
    tmp_path: Path,
    change_index: Callable[[Any], object],
    change_manifest: Callable[[Any], object],
    words: str | None,
) -> None:
    run("package", builds / "first.index.json", "-o", tmp_path / "layout")
    reference = f"{server.address}/{repository}:v1"
    push_as_a_stranger(reference, tmp_path / "layout", change_index, change_manifest)
    told = run("pull", reference, "-o", tmp_path / "out", expect={None: 0, "does not fit": 2}.get(words, 1))
    if words:
        assert words in told
        assert_empty(tmp_path / "out")
        assert not (tmp_path / "first.pte").exists()
    else:
        assert_complete(tmp_path / "out")


def test_a_tag_that_moves_while_it_is_pulled_gives_one_package(
    pushed: str, server: Registry, packages: Path, relay: Relay, repository: str, run: Run, tmp_path: Path
) -> None:
    from etbuild.cli import main

    def move() -> None:
        assert main.main(["push", str(packages / "changed"), f"{server.address}/{repository}:v1"]) == 0

    # After the tag was read, and before the first document of the package is.
    relay.faults = [Fault("GET", "/manifests/sha256:", times=1, before=move)]
    run("pull", pushed, "-o", tmp_path)
    assert_complete(tmp_path, b"one")
    run("verify", tmp_path)
    run("pull", pushed, "-o", tmp_path)
    assert_complete(tmp_path, b"new")


def test_a_body_that_drips_is_given_up(pushed: str, relay: Relay, run: Run, tmp_path: Path) -> None:
    relay.faults = [Fault("GET", BLOB, times=1, drip=0.01)]
    run("pull", pushed, "-o", tmp_path, "--stall-seconds", 0.3)
    assert_complete(tmp_path)
    relay.faults = [Fault("GET", "/manifests/v1", drip=0.01)]
    told = run("verify", pushed, "--stall-seconds", 0.1, expect=1)
    assert "bytes came in" in told


def test_a_registry_that_says_nothing_is_given_up(pushed: str, relay: Relay, run: Run, tmp_path: Path) -> None:
    relay.faults = [Fault("GET", BLOB, before=lambda: time.sleep(1), status=500)]
    assert "timed out" in run("pull", pushed, "-o", tmp_path, "--stall-seconds", 0.05, expect=1)
    assert_empty(tmp_path)


def test_a_registry_that_is_not_there(run: Run, tmp_path: Path) -> None:
    told = run("verify", "127.0.0.1:1/net:v1", expect=1)
    assert told == (
        "error: 127.0.0.1:1/net: cannot be reached: Failed to establish a new connection: Connection refused\n"
    )
    told = run("verify", "no-such-host.invalid/net:v1", expect=1)
    assert "Failed to resolve 'no-such-host.invalid'" in told


def test_a_registry_that_dies_in_an_upload_gets_the_rest(
    server: Registry, packages: Path, relay: Relay, repository: str, run: Run
) -> None:
    def restart() -> None:
        server.kill()
        server.start()

    relay.faults = [Fault("PATCH", "/uploads/", times=1, cut_request=2_000_000, before=restart)]
    run("push", packages / "first", f"{relay.address}/{repository}:v1")
    run("verify", f"{server.address}/{repository}:v1")


def test_a_broken_upload_continues_where_it_broke(
    server: Registry, packages: Path, relay: Relay, repository: str, run: Run
) -> None:
    server.blob(BLOB).unlink(missing_ok=True)
    relay.faults = [Fault("PATCH", "/uploads/", times=1, cut_request=2_000_000)]
    run("push", packages / "first", f"{relay.address}/{repository}:v1", "--jobs", 1)
    run("verify", f"{server.address}/{repository}:v1")


@pytest.fixture
def tokens(relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tokens:
    """The relay wants tokens, and the user has a login for them."""
    relay.tokens = Tokens()
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "docker", relay.address)))
    return relay.tokens


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
def test_a_token_that_ends_is_renewed_without_a_server(
    server: Registry, packages: Path, relay: Relay, tokens: Tokens, repository: str, run: Run, method: str
) -> None:
    relay.faults = [Fault(method, f"/{repository}/", times=2, status=401)]
    run("push", packages / "first", f"{relay.address}/{repository}:v1", "--jobs", 1)
    run("verify", f"{server.address}/{repository}:v1")
    assert len(tokens.given) == (3 if method == "POST" else 4)  # the first POST is refused for its lack of a token


@pytest.mark.parametrize("arrived", [100, 2_000_000])
def test_a_token_that_ends_when_an_upload_breaks_is_renewed_before_the_rest_is_sent(
    server: Registry, packages: Path, relay: Relay, tokens: Tokens, repository: str, run: Run, arrived: int
) -> None:
    """Some registries close the connection in place of an answer. The rest is then sent once, with a new token."""
    server.blob(BLOB).unlink(missing_ok=True)
    relay.faults = [Fault("PATCH", "/uploads/", times=1, cut_request=arrived, before=tokens.left.clear)]
    run("push", packages / "first", f"{relay.address}/{repository}:v1", "--jobs", 1)
    run("verify", f"{server.address}/{repository}:v1")
    patches = [path for method, path in relay.requests if method == "PATCH"]
    uploads = {path.partition("?")[0] for path in patches}
    assert len(patches) <= len(uploads) + 1


def test_a_token_that_is_refused_each_time_is_an_error(
    packages: Path, relay: Relay, tokens: Tokens, repository: str, run: Run
) -> None:
    relay.faults = [Fault("PATCH", "/uploads/", before=tokens.left.clear, status=401)]
    told = run("push", packages / "first", f"{relay.address}/{repository}:v1", "--jobs", 1, expect=1)
    assert "the login has ended" in told


def test_a_manifest_whose_blobs_are_not_seen_at_once_is_sent_again(
    server: Registry, packages: Path, relay: Relay, repository: str, run: Run
) -> None:
    relay.faults = [Fault("PUT", "/manifests/", times=2, status=400)]
    run("push", packages / "first", f"{relay.address}/{repository}:v1")
    run("verify", f"{server.address}/{repository}:v1")


def test_a_push_that_fails_moves_no_tag(
    server: Registry, packages: Path, relay: Relay, repository: str, run: Run, tmp_path: Path
) -> None:
    run("push", packages / "first", f"{server.address}/{repository}:v1")
    for fault in (
        Fault("POST", "/uploads/", status=500),
        Fault("PATCH", "/uploads/", cut_request=100),
        Fault("PUT", "/uploads/", status=400),
        Fault("PUT", "/manifests/sha256:", status=400),
        Fault("PUT", "/manifests/v1", status=507),
    ):
        relay.faults = [fault]
        run("push", packages / "changed", f"{relay.address}/{repository}:v1", expect=1)
    run("pull", f"{server.address}/{repository}:v1", "-o", tmp_path)
    assert_complete(tmp_path)


def test_a_damaged_layout_is_not_pushed(
    server: Registry, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    run("package", builds / "first.index.json", "-o", tmp_path / "layout")
    blob = tmp_path / "layout/blobs/sha256" / BLOB
    blob.write_bytes(flipped(BACKBONE))
    told = run("push", tmp_path / "layout", f"{server.address}/{repository}:v1", expect=1)
    assert "has other content than its digest says" in told
    assert "no such package" in run("verify", f"{server.address}/{repository}:v1", expect=2)


def started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(commands.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(happened: Callable[[], object]) -> None:
    limit = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < limit
        time.sleep(0.01)


WAITS = {
    "Retry-After": {"status": 429, "headers": {"Retry-After": "30"}},
    "pause": {"status": 503},
    "silence": {"before": lambda: time.sleep(60), "status": 500},
    "drip": {"drip": 1},
}


@pytest.mark.parametrize(
    ("verb", "method", "wait"),
    [
        *(("pull", "GET", wait) for wait in WAITS),
        ("push", "PATCH", "silence"),
        ("push", "HEAD", "Retry-After"),
        ("push", "PUT", "pause"),
        ("verify", "GET", "Retry-After"),
        ("history", "GET", "Retry-After"),
    ],
)
def test_an_interrupt_ends_a_wait_at_once(
    pushed: str, packages: Path, relay: Relay, tmp_path: Path, verb: str, method: str, wait: str
) -> None:
    place = f"/{pushed.partition('/')[2].rpartition(':')[0]}/"
    target = f"{relay.address}{place[:-1]}"
    part = {"push": "", "history": "blobs/"}.get(verb, f"blobs/sha256:{BLOB}")  # those that threads ask for
    relay.faults = [Fault(method, place + part, **WAITS[wait])]  # type: ignore[arg-type]
    arguments: dict[str, list[object]] = {
        "pull": ["pull", pushed, "-o", tmp_path / "out"],
        "push": ["push", packages / "changed", f"{target}:v1"],
        "verify": ["verify", pushed],
        "history": ["history", target],
    }
    needed = 4 if wait == "pause" else 1  # the fourth pause is a long one

    def asked() -> int:
        return sum(each == method and place + part in path for each, path in relay.requests)

    with started(*arguments[verb]) as process:
        until(lambda: asked() >= needed)
        time.sleep(0.1)
        before = asked()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    assert asked() == before  # the wait did not go on to its end
    assert (process.returncode, told.splitlines()[-1]) == (130, "etbuild: interrupted"), told
    assert "Traceback" not in told
    assert_empty(tmp_path / "out")


def test_a_killed_pull_continues_where_it_ended(
    pushed: str, relay: Relay, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pull takes what has arrived whole from the directory that was left, and nothing else of it."""
    monkeypatch.setenv("ETBUILD_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "out"
    relay.faults = [Fault("GET", BLOB, drip=1)]
    with started("pull", pushed, "-o", out, "--jobs", 1) as process:
        until(lambda: any(BLOB in path for _, path in relay.requests))
        until(lambda: list(out.glob(f".etbuild-*/blobs/{BLOB}")))
        process.kill()
    [left] = out.glob(".etbuild-*")
    program, weights = (hashlib.sha256(data).hexdigest() for data in (b"one" * 100, BACKBONE))
    assert (left / "blobs" / program).exists()
    assert (left / "blobs" / weights).stat().st_size < len(BACKBONE)
    relay.faults, relay.requests[:] = [], []
    moved = json.loads(run("pull", pushed, "-o", out, "--json"))["files"]
    assert not any(program in path for _, path in relay.requests)
    fetched = [BACKBONE, *((out / f"first.{kind}.json").read_bytes() for kind in ("index", "lock"))]
    assert (moved["sent"], moved["sent_bytes"]) == (3, sum(map(len, fetched)))
    assert_complete(out)


def test_a_damaged_file_of_a_killed_pull_is_fetched_again(
    pushed: str, relay: Relay, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETBUILD_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "out"
    relay.faults = [Fault("GET", BLOB, drip=1)]
    with started("pull", pushed, "-o", out, "--jobs", 1) as process:
        until(lambda: list(out.glob(f".etbuild-*/blobs/{BLOB}")))
        process.kill()
    [left] = out.glob(".etbuild-*")
    (left / "blobs" / hashlib.sha256(b"one" * 100).hexdigest()).write_bytes(b"two" * 100)
    relay.faults = []
    run("pull", pushed, "-o", out)
    assert_complete(out)


def limited(*arguments: object, size: int) -> subprocess.CompletedProcess[str]:
    """Runs `etbuild` in a process that cannot write larger files, as if the disk were full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    command = commands.command(*arguments)
    return subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)


def test_a_full_disk_leaves_nothing(pushed: str, tmp_path: Path) -> None:
    done = limited("pull", pushed, "-o", tmp_path / "out", size=1 << 20)
    assert done.returncode == 1, done.stderr
    assert "cannot write the file" in done.stderr
    assert "Traceback" not in done.stderr
    assert_empty(tmp_path / "out")


def at_the_same_time(*commands_lines: list[object]) -> list[subprocess.CompletedProcess[str]]:
    done: list[Any] = [None] * len(commands_lines)

    def one(number: int) -> None:
        done[number] = commands.etbuild(*commands_lines[number])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(commands_lines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def test_two_pulls_into_one_directory_give_one_of_both(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    for name in ("first", "changed"):
        run("push", packages / name, f"{server.address}/{repository}:{name}")
    lines = [["pull", f"{server.address}/{repository}:{tag}", "-o", tmp_path] for tag in ("first", "changed")] * 2
    for done in at_the_same_time(*lines):
        assert done.returncode == 0, done.stderr
    run("verify", tmp_path)
    assert_complete(tmp_path, (tmp_path / "first.pte").read_bytes()[:3])


def test_two_pushes_of_one_tag_give_one_of_both(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    lines = [["push", packages / name, f"{server.address}/{repository}:v1"] for name in ("first", "changed")] * 2
    for done in at_the_same_time(*lines):
        assert done.returncode == 0, done.stderr
    run("pull", f"{server.address}/{repository}:v1", "-o", tmp_path)
    run("verify", tmp_path)
    assert_complete(tmp_path, (tmp_path / "first.pte").read_bytes()[:3])


def test_a_link_in_the_way_is_replaced_and_not_followed(pushed: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/first.pte").symlink_to(tmp_path / "precious")
    (tmp_path / "out/first.weights.ptd").symlink_to("/dev/zero")
    run("pull", pushed, "-o", tmp_path / "out")
    assert (tmp_path / "precious").read_bytes() == b"mine"
    assert not (tmp_path / "out/first.pte").is_symlink()
    assert_complete(tmp_path / "out")
