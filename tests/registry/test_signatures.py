"""Signatures by commands of the user, with a key on this machine: openssl's, and cosign's where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.snippets import snippets

from .conftest import Run
from .servers import Registry

# What docs/signing.md shows for those who have no cosign: the signature of a digest is a file named after it.
SIGN, CHECK = (each.text for each in snippets() if each.page == "docs/signing.md" and each.text.startswith("#!/bin/sh"))


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the pairs of keys `ours` and `other`, and the programs `sign` and `check`."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path / "my keys"
    directory.mkdir()
    for name in ("ours", "other"):
        private, public = directory / f"{name}.pem", directory / f"{name}.pub"
        command = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        subprocess.run([*command, "-out", private], check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    for name, script in (("sign", SIGN), ("check", CHECK)):
        (directory / name).write_text(f"{script}\n")
        (directory / name).chmod(0o755)
    (tmp_path / "signatures").mkdir()
    monkeypatch.setenv("SIGNATURES", str(tmp_path / "signatures"))
    return directory


def sign(keys: Path, key: str = "ours") -> str:
    return f"'{keys}/sign' '{keys}/{key}.pem'"


def signed(keys: Path, key: str = "ours") -> str:
    return f"'{keys}/check' '{keys}/{key}.pub'"


def test_a_signed_package_is_accepted_and_others_are_not(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path, keys: Path
) -> None:
    reference = f"{server.address}/{repository}:v1"
    run("push", packages / "first", reference)
    assert "the signature is not accepted" in run("verify", reference, "--signed", signed(keys), expect=3)
    run("push", packages / "first", reference, "--sign", sign(keys))
    assert "files of first" in run("verify", reference, "--signed", signed(keys))
    run("pull", reference, "-o", tmp_path / "out", "--signed", signed(keys))
    told = run("pull", reference, "-o", tmp_path / "other", "--signed", signed(keys, "other"), expect=3)
    assert "the signature is not accepted" in told
    assert not (tmp_path / "other").exists()
    run("push", packages / "changed", reference)  # the tag moves to a package that is not signed
    assert "not accepted" in run("pull", reference, "-o", tmp_path / "out", "--signed", signed(keys), expect=3)
    assert (tmp_path / "out/first.pte").read_bytes() == b"one" * 100


def test_a_package_that_cannot_be_signed_gets_no_tag(
    server: Registry, packages: Path, repository: str, run: Run, keys: Path
) -> None:
    reference = f"{server.address}/{repository}:v1"
    told = run("push", packages / "first", reference, "--sign", sign(keys, "missing"), expect=1)
    assert "not signed" in told
    assert "no such package" in run("verify", reference, expect=2)


def test_the_output_stays_ours(
    server: Registry, packages: Path, repository: str, run: Run, keys: Path, tmp_path: Path
) -> None:
    (keys / "loud").write_text(f'#!/bin/sh\necho loud\necho "$@" > "{tmp_path}/given"\n')
    (keys / "loud").chmod(0o755)
    reference = f"{server.address}/{repository}:v1"
    pushed = json.loads(run("push", packages / "first", reference, "--json", "--sign", f"'{keys}/loud' '$HOME;' "))
    name = f"{server.address}/{repository}@{pushed['digest']}"
    assert (tmp_path / "given").read_text() == f"$HOME; {name}\n"  # no shell has read it
    assert json.loads(run("verify", reference, "--json", "--signed", f"'{keys}/loud'"))["files"] == 5


@pytest.mark.parametrize("command", ["", "'", "/no/such/program"])
def test_a_command_that_cannot_be_started_is_told(
    command: str, server: Registry, packages: Path, repository: str, run: Run
) -> None:
    reference = f"{server.address}/{repository}:v1"
    run("push", packages / "first", reference)
    run("verify", reference, "--signed", command, expect=2)
    run("push", packages / "first", reference, "--sign", command, expect=2)
    assert "for a package in a registry" in run("verify", packages / "first", "--signed", "true", expect=2)


def test_cosign_signs_with_a_key_of_this_machine(
    server: Registry, packages: Path, repository: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cosign") is None:
        pytest.skip("cosign is not installed")
    monkeypatch.setenv("COSIGN_PASSWORD", "open sesame")
    command = ["cosign", "generate-key-pair", "--output-key-prefix", str(tmp_path / "key")]
    subprocess.run(command, check=True, capture_output=True, env=os.environ)
    reference = f"{server.address}/{repository}:v1"
    flags = "--allow-http-registry"
    run(
        "push",
        packages / "first",
        reference,
        "--sign",
        f"cosign sign {flags} --tlog-upload=false --key {tmp_path}/key.key",
    )
    check = f"cosign verify {flags} --insecure-ignore-tlog --key {tmp_path}/key.pub"
    run("verify", reference, "--signed", check)
    run("push", packages / "changed", reference)
    run("verify", reference, "--signed", check, expect=3)
