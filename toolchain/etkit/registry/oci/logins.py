"""The logins of `docker login`: from Docker's config.json, and from the credential helpers that it names.

https://docs.docker.com/reference/cli/docker/login/ describes the file. Nothing is stored here.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etbuild.files import json_file, regular_files

_CONFIG_BYTES = 1 << 20
_HELPER_SECONDS = 60
_TOKEN_USER = "<token>"  # with this user name, a helper says that the password is an identity token
_NOT_FOUND = "credentials not found in native keychain"  # what helpers print if they have no login
_DOCKER_HUB = "https://index.docker.io/v1/"
_DOCKER_HOSTS = ("docker.io", "index.docker.io", "registry-1.docker.io")


@dataclass(frozen=True)
class Login:
    """A login for a registry.

    Attributes:
        user: The name of the user.
        password: The password.
        identity_token: A token that the registry's token server takes in place of user and password.
    """

    user: str = ""
    password: str = ""
    identity_token: str | None = None


def api_host(registry: str) -> str:
    """The host of a registry's API. Docker Hub's is not the one in its name."""
    return "registry-1.docker.io" if registry in _DOCKER_HOSTS else registry


def find(registry: str) -> Login | None:
    """The user's login for a registry; None if there is none.

    The directory of the file is `$DOCKER_CONFIG`, or if that is not set, `~/.docker`. As in Docker, a credential helper
    takes precedence over a login in the file.

    Raises:
        InputError: The file or the answer of a helper cannot be read.
    """
    config = _config()
    server = _DOCKER_HUB if registry in _DOCKER_HOSTS else registry
    helper = _part(config, "credHelpers").get(server, config.get("credsStore"))
    login = _of_helper(helper, server) if helper else None
    return login or _of_file(_part(config, "auths"), server)


def _config() -> dict[str, Any]:
    """The content of Docker's file; empty if there is none."""
    try:
        named = os.environ.get("DOCKER_CONFIG")
        path = (Path(named) if named else Path.home() / ".docker") / "config.json"
        content = json_file.parse(regular_files.read(path, _CONFIG_BYTES))
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # RuntimeError: there is no home directory
        return {}
    except OSError as error:
        raise _unreadable(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise _unreadable(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise _unreadable(f"{path}: not an object")
    return content


def _part(config: dict[str, Any], key: str) -> dict[str, Any]:
    part = config.get(key) or {}
    if not isinstance(part, dict):
        raise _unreadable(f"`{key}` is not an object")
    return part


def _of_file(auths: dict[str, Any], server: str) -> Login | None:
    """The login that the file itself holds. Its keys are hosts, or addresses of earlier versions of Docker."""
    entry = auths.get(server) or next((auths[key] for key in auths if _host(key) == _host(server)), None)
    if not isinstance(entry, dict):
        return None
    token, packed = entry.get("identitytoken"), entry.get("auth")
    if isinstance(token, str) and token:
        return Login(identity_token=token)
    if not packed:
        return None
    try:
        user, colon, password = base64.b64decode(packed, validate=True).decode().partition(":")
    except (ValueError, TypeError):
        colon = ""
    if not colon:
        raise _unreadable(f"`auth` of {server} is not a name and a password in base64")
    return Login(user, password.rstrip("\0"))


def _host(key: str) -> str:
    """The host of a key, which may be a host or an address such as `https://host/v1/`."""
    return re.sub("^https?://", "", key).partition("/")[0]


def _of_helper(helper: object, server: str) -> Login | None:
    """Asks a credential helper.

    https://github.com/docker/docker-credential-helpers describes the protocol.
    """
    if not isinstance(helper, str) or not re.fullmatch(r"[\w.-]+", helper, re.ASCII):
        raise _unreadable(f"{str(helper)[:100]!r} cannot be the name of a credential helper")
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=server.encode(), capture_output=True, timeout=_HELPER_SECONDS, check=False
        )
    except OSError as error:
        raise _unreadable(f"{program}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _unreadable(f"{program} has not answered in {_HELPER_SECONDS} seconds") from None
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip()).decode(errors="replace")
        if said.startswith(_NOT_FOUND):
            return None
        raise _unreadable(f"{program}: {said[:300] or f'exit code {done.returncode}'}")
    try:
        answer = json_file.parse(done.stdout)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError):
        user = secret = None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise _unreadable(f"{program} gives no `Username` and `Secret`")
    if not secret:
        return None
    return Login(identity_token=secret) if user == _TOKEN_USER else Login(user, secret)


def _unreadable(reason: str) -> InputError:
    return InputError.of(f"cannot read the logins of Docker: {reason}")
