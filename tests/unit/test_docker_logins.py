"""Logins of Docker's config.json and of credential helpers: which one is taken, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from etbuild.errors import InputError
from etkit.registry.oci import logins
from etkit.registry.oci.logins import Login

HOST = "registry.example.com:5000"
Write = Callable[[object], None]


def packed(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the config.json that `$DOCKER_CONFIG` names. Helpers are found in the directory `bin`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "docker").mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def written(content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "docker/config.json").write_text(text)

    return written


def helper(directory: Path, script: str, name: str = "tests") -> None:
    path = directory / f"bin/docker-credential-{name}"
    path.write_text(f"#!/bin/sh\nread server\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("registry", "auths", "login"),
    [
        (HOST, {HOST: packed("me:secret:1")}, Login("me", "secret:1")),
        (HOST, {f"https://{HOST}/v1/": packed("me:old")}, Login("me", "old")),
        (HOST, {f"https://{HOST}": packed("me:old"), HOST: packed("me:new")}, Login("me", "new")),
        (HOST, {HOST: {**packed("me:x"), "identitytoken": "t"}}, Login(identity_token="t")),
        (HOST, {HOST: {}}, None),
        (HOST, {"registry.example.com": packed("me:another-port")}, None),
        ("localhost", {"127.0.0.1": packed("me:another-name")}, None),
        ("docker.io", {"https://index.docker.io/v1/": packed("me:hub")}, Login("me", "hub")),
        ("registry-1.docker.io", {"index.docker.io": packed("me:hub")}, Login("me", "hub")),
    ],
)
def test_a_login_of_the_file(registry: str, auths: object, login: Login | None, write: Write) -> None:
    write({"auths": auths})
    assert logins.find(registry) == login


def test_docker_io_is_reached_at_the_host_that_speaks_for_it() -> None:
    assert logins.api_host("docker.io") == "registry-1.docker.io"
    assert logins.api_host(HOST) == HOST


def test_the_named_directory_takes_the_place_of_the_one_at_home(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home/.docker").mkdir(parents=True)
    (tmp_path / "home/.docker/config.json").write_text(json.dumps({"auths": {HOST: packed("me:home")}}))
    write({"auths": {}})
    assert logins.find(HOST) is None
    (tmp_path / "docker/config.json").unlink()
    assert logins.find(HOST) is None
    monkeypatch.delenv("DOCKER_CONFIG")
    assert logins.find(HOST) == Login("me", "home")


def test_a_helper_goes_before_the_file_and_that_of_a_host_before_the_store(write: Write, tmp_path: Path) -> None:
    answer = '{"Username": "me", "Secret": "%s"}'
    helper(tmp_path, f"echo '{answer % 'store'}'", "store")
    helper(tmp_path, f"""[ "$server" = {HOST} ] && echo '{answer % "host"}'""", "host")
    config = {"auths": {HOST: packed("me:file")}, "credsStore": "store"}
    write({**config, "credHelpers": {HOST: "host"}})
    assert logins.find(HOST) == Login("me", "host")
    write(config)
    assert logins.find(HOST) == Login("me", "store")
    helper(tmp_path, "echo 'credentials not found in native keychain'; exit 1", "store")
    assert logins.find(HOST) == Login("me", "file")


def test_a_helper_may_have_an_identity_token_or_nothing(write: Write, tmp_path: Path) -> None:
    write({"credsStore": "tests"})
    helper(tmp_path, """echo '{"Username": "<token>", "Secret": "t"}'""")
    assert logins.find(HOST) == Login(identity_token="t")
    helper(tmp_path, """echo '{"Username": "", "Secret": ""}'""")
    assert logins.find(HOST) is None


def test_docker_hub_has_its_own_name_for_helpers(write: Write, tmp_path: Path) -> None:
    write({"credsStore": "tests"})
    helper(tmp_path, """echo "{\\"Username\\": \\"$server\\", \\"Secret\\": \\"x\\"}\"""")
    assert logins.find("docker.io") == Login("https://index.docker.io/v1/", "x")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo nonsense", "gives no `Username`"),
        ("echo '[1]'", "gives no `Username`"),
        ("""echo '{"Username": 1, "Secret": "x"}'""", "gives no `Username`"),
        ("""echo '{"Secret": "x"}'""", "gives no `Username`"),
        ("printf '\\377'", "gives no `Username`"),
        ("echo the key ring is locked; exit 1", "the key ring is locked"),
        ("exit 3", "exit code 3"),
        ("sleep 5", "has not answered"),
    ],
)
def test_odd_answers_of_a_helper_are_told(
    script: str, words: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_HELPER_SECONDS", 0.5)
    write({"credsStore": "tests"})
    helper(tmp_path, script)
    with pytest.raises(InputError, match=words):
        logins.find(HOST)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "config.json"),
        ("[]", "not an object"),
        ({"auths": [1]}, "`auths` is not an object"),
        ({"auths": {HOST: {"auth": "%%%"}}}, "not a name and a password"),
        ({"auths": {HOST: {"auth": 7}}}, "not a name and a password"),
        ({"auths": {HOST: {"auth": "bm8="}}}, "not a name and a password"),
        ({"credsStore": "../../tmp/x"}, "cannot be the name of a credential helper"),
        ({"credHelpers": {HOST: ["x"]}}, "cannot be the name of a credential helper"),
        ({"credsStore": "not-installed"}, "docker-credential-not-installed: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(config: object, words: str, write: Write) -> None:
    write(config)
    with pytest.raises(InputError, match=words):
        logins.find(HOST)


def test_no_home_is_no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    assert logins.find(HOST) is None
