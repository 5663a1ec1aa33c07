"""Push, pull and verify with a real registry: what is sent, and that other tools read it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from etbuild.cli import main
from etkit.local.cache.store import Cache
from etkit.registry.oci import dates, package
from etkit.registry.oci import layout as layouts

from .conftest import BACKBONE, Run
from .servers import PASSWORD, USER, Registry, Relay, Tokens, Wire, docker_config, find, skopeo


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def built(directory: Path, *programs: str) -> dict[str, bytes]:
    """The files of builds, with the lockfiles that a package adds left out."""
    return {name: data for name, data in files(directory).items() if name.split(".")[0] in programs}


def without_locks(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in files(directory).items() if not name.endswith(".lock.json")}


def test_what_is_pulled_is_what_was_built(
    server: Registry, packages: Path, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    reference = f"{server.address}/{repository}:v1"
    digest = run("push", packages / "both", reference).splitlines()[-1]
    told = run("pull", reference, "-o", tmp_path / "by-tag")
    assert re.search(r"^9 files fetched \(.*\), 0 were there$", told, re.MULTILINE), told
    assert "0 files fetched (0 B), 9 were there" in run("pull", reference, "-o", tmp_path / "by-tag")
    run("pull", digest, "-o", tmp_path / "by-digest")
    assert without_locks(tmp_path / "by-tag") == built(builds, "first", "second")
    assert files(tmp_path / "by-tag") == files(tmp_path / "by-digest")
    assert "10 files of first, second" in run("verify", tmp_path / "by-tag")  # one blob stands for two of them
    for name in ("first", "second"):
        run("lock", tmp_path / f"by-tag/{name}.index.json", tmp_path / f"by-tag/{name}.lock.json")
    assert "9 files of first, second" in run("verify", reference)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "by-tag").iterdir()}
    assert len(modes) == 1


def test_one_program_of_a_package_can_be_pulled(
    server: Registry, packages: Path, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    reference = f"{server.address}/{repository}:v1"
    pushed = json.loads(run("push", packages / "both", reference, "--json"))
    run("pull", reference, "-o", tmp_path / "by-name", "--program", "second")
    run("pull", f"{server.address}/{repository}@{pushed['programs']['second']}", "-o", tmp_path / "by-digest")
    assert without_locks(tmp_path / "by-name") == built(builds, "second") == without_locks(tmp_path / "by-digest")
    assert "did you mean `second`" in run("pull", reference, "-o", tmp_path, "--program", "sekond", expect=2)


def test_a_second_program_over_a_backbone_sends_a_hundredth(
    server: Registry, packages: Path, repository: str, run: Run
) -> None:
    with Wire(server.port) as wire:
        run("push", packages / "first", f"{wire.address}/{repository}:first")
        first = wire.sent
        run("push", packages / "second", f"{wire.address}/{repository}:second")
    assert first > len(BACKBONE)
    assert wire.sent - first < first / 100


def test_a_changed_graph_is_pulled_without_its_weights(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    for name in ("first", "changed"):
        run("push", packages / name, f"{server.address}/{repository}:{name}")
    with Wire(server.port) as wire:
        run("pull", f"{wire.address}/{repository}:first", "-o", tmp_path)
        before = wire.received
        moved = json.loads(run("pull", f"{wire.address}/{repository}:changed", "-o", tmp_path, "--json"))["files"]
    changed = ["first.pte", "first.report.json", "first.index.json", "first.lock.json"]
    size = sum((tmp_path / name).stat().st_size for name in changed)
    assert moved == {"sent": 4, "sent_bytes": size, "mounted": 0, "present": 1}
    assert wire.received - before < 20_000
    assert (tmp_path / "first.pte").read_bytes() == b"new" * 100


def test_a_push_that_has_nothing_new_sends_only_manifests(
    relay: Relay, packages: Path, repository: str, run: Run
) -> None:
    run("push", packages / "both", f"{relay.address}/{repository}:v1")
    relay.requests.clear()
    run("push", packages / "both", f"{relay.address}/{repository}:v2")
    assert {method for method, _ in relay.requests} == {"GET", "HEAD", "PUT"}
    assert sum(method == "PUT" for method, _ in relay.requests) == 5  # two programs, their provenance, one tag


def test_blobs_are_mounted_from_another_repository(relay: Relay, packages: Path, repository: str, run: Run) -> None:
    run("push", packages / "first", f"{relay.address}/{repository}-one:v1")
    relay.sent = 0
    options = ["--mount-from", f"{repository}-none", "--mount-from", f"{repository}-one", "--json"]
    pushed = json.loads(run("push", packages / "second", f"{relay.address}/{repository}-two:v1", *options))
    assert pushed["files"]["mounted"] == 2  # the backbone, and the empty config of the provenance
    assert relay.sent < len(BACKBONE) / 100
    run("verify", f"{relay.address}/{repository}-two:v1")


def test_a_blob_of_the_local_cache_is_not_fetched(
    relay: Relay, packages: Path, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    reference = f"{relay.address}/{repository}:v1"
    run("push", packages / "first", reference)
    Cache(tmp_path / "cache").store("lower", "0" * 64, builds, ["first.weights.ptd"])
    relay.received = 0
    run("pull", reference, "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache")
    assert relay.received < len(BACKBONE) / 100
    assert (tmp_path / "out/first.weights.ptd").read_bytes() == BACKBONE
    [blob] = (tmp_path / "cache/blobs").rglob("*/*")
    blob.write_bytes(b"damaged" + BACKBONE[7:])
    run("pull", reference, "-o", tmp_path / "again", "--cache-dir", tmp_path / "cache")
    assert (tmp_path / "again/first.weights.ptd").read_bytes() == BACKBONE
    assert not blob.exists()


def test_tags_come_from_stamp_values(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "stamp").write_text("STABLE_GIT_COMMIT 12ab\n")
    tags = ["--tag", "at-{STABLE_GIT_COMMIT}", "--tag", "latest", "--stamp-file", tmp_path / "stamp"]
    run("push", packages / "first", f"elsewhere.invalid/{repository}", "--registry", server.address, *tags)
    digests = {
        json.loads(run("pull", f"{server.address}/{repository}:{tag}", "-o", tmp_path / tag, "--json"))["digest"]
        for tag in ("at-12ab", "latest")
    }
    assert len(digests) == 1


def test_a_package_that_is_not_there(server: Registry, repository: str, run: Run, tmp_path: Path) -> None:
    reference = f"{server.address}/{repository}:none"
    assert "there is no such package" in run("pull", reference, "-o", tmp_path / "out", expect=2)
    assert not (tmp_path / "out").exists()


def test_a_registry_with_tls(
    packages: Path, certificate: tuple[Path, Path], repository: str, run: Run, tmp_path: Path, elsewhere: str
) -> None:
    server = Registry(tmp_path / "registry", certificate)
    server.start()
    try:
        reference = f"{server.address}/{repository}:v1"
        run("push", packages / "first", reference, "--ca-file", certificate[0])
        run("pull", reference, "-o", tmp_path / "out", "--ca-file", certificate[0])
        assert (tmp_path / "out/first.weights.ptd").read_bytes() == BACKBONE
        # On another machine TLS is the default, and the certificate of the tests is nobody's.
        stranger = f"{elsewhere}:{server.port}/{repository}:v1"
        assert "--ca-file" in run("pull", stranger, "-o", tmp_path / "untrusted", expect=1)
        assert not (tmp_path / "untrusted").exists()
        assert "no such file" in run("pull", reference, "--ca-file", tmp_path / "no.pem", expect=2)
    finally:
        server.kill()


def test_plain_http_needs_a_flag_for_another_machine(
    server: Registry, repository: str, run: Run, elsewhere: str
) -> None:
    reference = f"{elsewhere}:{server.port}/{repository}:v1"
    run("verify", reference, expect=1)
    assert "there is no such package" in run("verify", reference, "--plain-http", expect=2)


@pytest.fixture
def closed(tmp_path: Path) -> Registry:
    """A registry that wants a login. The test ends it."""
    server = Registry(tmp_path / "registry", login=True)
    server.start()
    return server


def test_a_registry_with_logins(
    closed: Registry, packages: Path, repository: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        reference = f"{closed.address}/{repository}:v1"
        assert "docker login" in run("push", packages / "first", reference, expect=2)
        monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "wrong", closed.address, "wrong")))
        assert "wants a login" in run("push", packages / "first", reference, expect=2)
        monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "right", closed.address)))
        run("push", packages / "first", reference)
        run("pull", reference, "-o", tmp_path / "out")
        assert (tmp_path / "out/first.weights.ptd").read_bytes() == BACKBONE
        (tmp_path / "right/config.json").write_text("{")
        assert "cannot read the logins" in run("pull", reference, "-o", tmp_path / "out", expect=2)
    finally:
        closed.kill()


@pytest.mark.parametrize("uses", [1_000_000, 2, 3, 4, 5])
def test_a_registry_with_tokens(
    relay: Relay, packages: Path, repository: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: int
) -> None:
    """A token for reading does not allow writing, and a token may end in the middle of a transfer."""
    relay.tokens = Tokens(uses=uses)
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "docker", relay.address)))
    reference = f"{relay.address}/{repository}:v1"
    run("push", packages / "both", reference, "--jobs", 1)
    run("pull", reference, "-o", tmp_path / "out", "--jobs", 1)  # several threads would use up a token of one of them
    assert (tmp_path / "out/first.weights.ptd").read_bytes() == BACKBONE
    assert set(relay.tokens.given) == {f"repository:{repository}:pull", f"repository:{repository}:pull,push"}


def test_each_kind_of_access_keeps_its_own_token(
    relay: Relay, packages: Path, repository: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that read, write and mount at the same time do not take each other's tokens away."""
    run("push", packages / "first", f"{relay.address}/{repository}-one:v1")
    relay.tokens = Tokens()
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "docker", relay.address)))
    options = ["--mount-from", f"{repository}-one", "--jobs", 8, "--json"]
    pushed = json.loads(run("push", packages / "both", f"{relay.address}/{repository}-two:v1", *options))
    assert pushed["files"]["mounted"] == 7  # all files of `first`; those of `second` are sent
    reads, writes, other = (f"repository:{repository}-{name}" for name in ("two:pull", "two:pull,push", "one:pull"))
    assert sorted(relay.tokens.given) == [reads, writes, f"{writes} {other}"]
    assert "DELETE" not in {method for method, _ in relay.requests}


def test_a_repository_that_the_login_cannot_read_is_not_mounted_from(
    relay: Relay, packages: Path, repository: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay.tokens = Tokens(closed={f"{repository}-one"})
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "docker", relay.address)))
    options = ["--mount-from", f"{repository}-one", "--json"]
    pushed = json.loads(run("push", packages / "first", f"{relay.address}/{repository}-two:v1", *options))
    assert (pushed["files"]["mounted"], pushed["files"]["present"]) == (0, 0)
    run("verify", f"{relay.address}/{repository}-two:v1")


def pack(builds: Path, directory: Path, name: str, date: str | None) -> Path:
    index = builds / ("changed/first.index.json" if name == "changed" else "first.index.json")
    layouts.write(package.make([index], {dates.CREATED: date} if date else {}), directory / name)
    return directory / name


@pytest.mark.parametrize(
    ("there", "new", "moves"),
    [
        ("2026-11-03T01:00:00+02:00", "2026-11-02T23:30:00Z", True),  # later, though its text is smaller
        ("2026-11-02T23:30:00Z", "2026-11-03T01:00:00+02:00", False),
        ("2026-11-02T23:30:00Z", "2026-11-02T23:30:00Z", True),  # the same commit, built again
        (None, "2026-11-02T23:30:00Z", True),
        ("yesterday", "2026-11-02T23:30:00Z", True),
    ],
)
def test_a_forward_tag_moves_only_forward(
    server: Registry,
    builds: Path,
    repository: str,
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    there: str | None,
    new: str,
    moves: bool,
) -> None:
    name = f"{server.address}/{repository}"
    run("push", pack(builds, tmp_path, "first", there), f"{name}:main")
    tags = ["--tag", "commit", "--forward-tag", "main"]
    changed = pack(builds, tmp_path, "changed", new)
    assert main.main(["push", str(changed), name, *tags, "--json"]) == 0
    captured = capsys.readouterr()
    pushed = json.loads(captured.out)
    assert pushed["tags"] == (["commit", "main"] if moves else ["commit"])
    assert pushed["stay"] == ([] if moves else ["main"])
    assert ("main names a later package" in captured.err) == (not moves)
    run("pull", f"{name}:main", "-o", tmp_path / "main")
    assert (tmp_path / "main/first.pte").read_bytes() == (b"new" if moves else b"one") * 100
    run("verify", f"{name}:commit")


def test_a_forward_tag_can_be_new(server: Registry, builds: Path, repository: str, run: Run, tmp_path: Path) -> None:
    name = f"{server.address}/{repository}"
    run("push", pack(builds, tmp_path, "first", "2026-11-02T23:30:00Z"), name, "--forward-tag", "main")
    run("verify", f"{name}:main")


def test_a_package_whose_only_tag_stays_can_be_pulled_by_its_digest(
    server: Registry, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    name = f"{server.address}/{repository}"
    run("push", pack(builds, tmp_path, "first", "2026-11-02T23:30:00Z"), f"{name}:main")
    told = run("push", pack(builds, tmp_path, "changed", "2026-11-01T23:30:00Z"), name, "--forward-tag", "main")
    run("verify", told.splitlines()[-1])


def test_a_forward_tag_needs_a_date(
    server: Registry, builds: Path, repository: str, run: Run, tmp_path: Path, relay: Relay
) -> None:
    name = f"{relay.address}/{repository}"
    told = run("push", pack(builds, tmp_path, "first", None), name, "--forward-tag", "main", expect=2)
    assert "no date" in told
    assert dates.CREATED in told
    assert not [path for method, path in relay.requests if method != "GET"]
    dated = pack(builds, tmp_path, "changed", "2026-11-02T23:30:00Z")
    assert "given twice" in run("push", dated, f"{name}:main", "--forward-tag", "main", expect=2)


def test_anybody_may_get_a_token_for_reading(
    server: Registry, relay: Relay, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    run("push", packages / "first", f"{server.address}/{repository}:v1")
    relay.tokens = Tokens(anonymous=True)
    run("pull", f"{relay.address}/{repository}:v1", "-o", tmp_path / "out")
    assert (tmp_path / "out/first.weights.ptd").read_bytes() == BACKBONE
    assert "wants a login" in run("push", packages / "second", f"{relay.address}/{repository}:v2", expect=2)


def test_a_refused_token_is_told(
    relay: Relay, packages: Path, repository: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay.tokens = Tokens()
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "docker", relay.address, "wrong")))
    assert "wants a login" in run("push", packages / "first", f"{relay.address}/{repository}:v1", expect=2)


def test_a_credential_helper_gives_the_login(
    closed: Registry, packages: Path, repository: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-tests"
    answer = json.dumps({"ServerURL": closed.address, "Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\nread host\n[ \"$1 $host\" = 'get {closed.address}' ] && echo '{answer}'\n")
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {closed.address: "tests"}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    try:
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/local/bin:/usr/bin:/bin")
        run("push", packages / "first", f"{closed.address}/{repository}:v1")
        helper.write_text("#!/bin/sh\necho nonsense\n")
        assert "cannot read the logins" in run("verify", f"{closed.address}/{repository}:v1", expect=2)
    finally:
        closed.kill()


def test_a_delta_between_two_tags_is_applied(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    tags = [f"{server.address}/{repository}:{name}" for name in ("first", "changed")]
    for name, tag in zip(("first", "changed"), tags, strict=True):
        run("push", packages / name, tag)
    run("pull", tags[0], "-o", tmp_path / "device")
    listed = json.loads(run("delta", *tags, "-o", tmp_path / "delta", "--json"))
    assert listed["bytes"] < 20_000 < listed["whole_bytes"]
    run("apply", tmp_path / "delta", tmp_path / "device")
    run("pull", tags[1], "-o", tmp_path / "pulled")
    assert files(tmp_path / "device") == files(tmp_path / "pulled")


def test_provenance_can_be_found_from_a_program(
    server: Registry, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    """The registry has no interface for referrers, so the list of them stands under a tag of the specification."""
    for number in (1, 2):
        layout = tmp_path / str(number)
        run("package", builds / "first.index.json", "-o", layout, "--builder", f"https://ci.example.com/{number}")
        pushed = json.loads(run("push", layout, f"{server.address}/{repository}:v{number}", "--json"))
    tag = pushed["programs"]["first"].replace(":", "-")
    listed = json.loads(
        skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{server.address}/{repository}:{tag}")
    )
    assert [each["artifactType"] for each in listed["manifests"]] == ["application/vnd.in-toto+json"] * 2
    for number, each in enumerate(listed["manifests"], 1):
        target = f"docker://{server.address}/{repository}@{each['digest']}"
        manifest = json.loads(skopeo("inspect", "--raw", "--tls-verify=false", target))
        assert manifest["subject"]["digest"] == pushed["programs"]["first"]
        statement = json.loads(server.blob(manifest["layers"][0]["digest"].partition(":")[2]).read_bytes())
        assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
        assert statement["predicate"]["runDetails"]["builder"]["id"] == f"https://ci.example.com/{number}"


def strip(packed: Path, stripped: Path) -> None:
    """Copies a layout of one program without its statement, as somebody would who can write to the registry."""
    shutil.copytree(packed, stripped)
    layout = json.loads((stripped / "index.json").read_bytes())
    blobs = stripped / "blobs/sha256"
    root = json.loads((blobs / layout["manifests"][0]["digest"].partition(":")[2]).read_bytes())
    root["manifests"] = root["manifests"][:1]
    data = json.dumps(root).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    (blobs / sha256).write_bytes(data)
    layout["manifests"][0].update(digest=f"sha256:{sha256}", size=len(data))
    (stripped / "index.json").write_text(json.dumps(layout))


def test_a_policy_finds_that_a_statement_is_gone(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    strip(packages / "first", tmp_path / "stripped")
    (tmp_path / "policy.yaml").write_text("schema: executorch-policy/v1\nprovenance: true\n")
    reference = f"{server.address}/{repository}:v1"
    run("push", tmp_path / "stripped", reference)
    for place in (reference, tmp_path / "stripped"):
        assert "no statement says who has built first" in run("verify", place)
        told = run("verify", place, "--policy", tmp_path / "policy.yaml", expect=3)
        assert "first: no statement says who has built it" in told


def test_verify_finds_statements_among_the_referrers(
    server: Registry, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    run("package", builds / "first.index.json", "-o", tmp_path / "layout", "--builder", "https://ci.example.com/1")
    pushed = json.loads(run("push", tmp_path / "layout", f"{server.address}/{repository}:v1", "--json"))
    strip(tmp_path / "layout", tmp_path / "stripped")
    run("push", tmp_path / "stripped", f"{server.address}/{repository}:stripped")
    (tmp_path / "policy.yaml").write_text("schema: executorch-policy/v1\nbuilders: [https://ci.example.com/*]\n")
    for place in (f":v1@{pushed['programs']['first']}", ":stripped"):
        reference = f"{server.address}/{repository}{place}"
        verified = json.loads(run("verify", reference, "--policy", tmp_path / "policy.yaml", "--json"))
        assert verified["builders"] == {"first": ["https://ci.example.com/1"]}


def test_a_bill_of_materials_can_be_found_from_a_program(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("cyclonedx")
    reference = f"{server.address}/{repository}:v1"
    pushed = json.loads(run("push", packages / "both", reference, "--json"))
    attached = json.loads(run("sbom", reference, "--attach", "--json"))
    assert json.loads(run("sbom", reference, "--attach", "--json")) == attached  # once more changes nothing
    assert run("sbom", reference, "--attach", "--program", "first").strip().endswith(attached["first"])
    for program, digest in attached.items():
        target = f"docker://{server.address}/{repository}@{digest}"
        manifest = json.loads(skopeo("inspect", "--raw", "--tls-verify=false", target))
        assert manifest["subject"]["digest"] == pushed["programs"][program]
        bill = server.blob(manifest["layers"][0]["digest"].partition(":")[2]).read_text()
        assert bill == run("sbom", reference, "--program", program)
        tag = f"docker://{server.address}/{repository}:{pushed['programs'][program].replace(':', '-')}"
        listed = json.loads(skopeo("inspect", "--raw", "--tls-verify=false", tag))["manifests"]
        kinds = [each["artifactType"] for each in listed]
        assert kinds == ["application/vnd.in-toto+json", "application/vnd.cyclonedx+json"]
    run("verify", reference)
    assert "does not go with -o" in run("sbom", reference, "--attach", "-o", tmp_path / "bill", expect=2)


def test_the_commands_of_rules_oci_push_a_package(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    """The rule oci_push takes a directory, and runs crane: it pushes the first digest of the index, and sets tags."""
    crane = find("crane")
    layout = packages / "both"
    [found] = json.loads((layout / "index.json").read_text())["manifests"]
    target = f"{server.address}/{repository}"
    references = tmp_path / "references"
    for command in (
        ["push", "--insecure", layout, f"{target}@{found['digest']}", "--image-refs", references],
        ["tag", "--insecure", f"{target}@{found['digest']}", "v1"],
    ):
        subprocess.run([crane, *command], capture_output=True, check=True)
    assert references.read_text().strip() == f"{target}@{found['digest']}"
    assert found["digest"] in run("pull", f"{target}:v1", "-o", tmp_path / "pulled")
    run("verify", f"{target}:v1")


def test_skopeo_copies_a_package_in_and_out_with_its_digest(
    server: Registry, packages: Path, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    run("package", builds / "first.index.json", builds / "second.index.json", "--tar", tmp_path / "both.tar")
    target = f"docker://{server.address}/{repository}"
    skopeo("copy", "--all", "--dest-tls-verify=false", f"oci:{packages / 'both'}", f"{target}:directory")
    skopeo("copy", "--all", "--dest-tls-verify=false", f"oci-archive:{tmp_path / 'both.tar'}", f"{target}:tar")
    skopeo("copy", "--all", "--src-tls-verify=false", f"{target}:tar", f"oci:{tmp_path / 'out'}")
    root = json.loads((packages / "both/index.json").read_bytes())["manifests"][0]["digest"]
    for tag in ("directory", "tar"):
        pulled = json.loads(run("pull", f"{server.address}/{repository}:{tag}", "-o", tmp_path / tag, "--json"))
        assert pulled["digest"] == root
    run("verify", tmp_path / "out")
    assert json.loads((tmp_path / "out/index.json").read_bytes())["manifests"][0]["digest"] == root


def test_skopeo_inspects_what_was_pushed(server: Registry, packages: Path, repository: str, run: Run) -> None:
    pushed = json.loads(run("push", packages / "both", f"{server.address}/{repository}:v1", "--json"))
    raw = skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{server.address}/{repository}:v1")
    programs = [each for each in json.loads(raw)["manifests"] if "provenance" not in str(each["annotations"])]
    assert [each["digest"] for each in programs] == list(pushed["programs"].values())
    tags = skopeo("list-tags", "--tls-verify=false", f"docker://{server.address}/{repository}")
    assert "v1" in json.loads(tags)["Tags"]


def test_oras_pulls_what_was_pushed(
    server: Registry, packages: Path, builds: Path, repository: str, run: Run, tmp_path: Path
) -> None:
    from oras.client import OrasClient

    pushed = json.loads(run("push", packages / "both", f"{server.address}/{repository}:v1", "--json"))
    client = OrasClient(hostname=server.address, insecure=True)
    for name, digest in pushed["programs"].items():
        client.pull(target=f"{server.address}/{repository}@{digest}", outdir=str(tmp_path / name))
        expected = {file: data for file, data in built(builds, name).items() if file != f"{name}.index.json"}
        assert without_locks(tmp_path / name) == expected
