"""A catalog: one JSON about all programs below a directory, for applications that download models.

It holds no time, so that equal builds have equal catalogs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlsplit

from etbuild.errors import InputError, steers
from etbuild.results import ArtifactFacts
from etkit.publishing.builds import Build

SCHEMA = "executorch-catalog/v1"
_OF_METADATA = ("version", "license", "authors", "description")
_LONGEST = 2000  # characters of an address


def checked_address(text: str) -> str:
    """The address below which the files are, with a `/` at its end.

    Raises:
        InputError: It is no address of a folder.
    """
    hint = "for example --base-url https://models.example.com/v1/"
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("https", "http") or not host or steers(text) or " " in text or len(text) > _LONGEST:
        raise InputError.of(f"--base-url {text[:100]}: not an address that begins with https:// or http://", hint)
    if parts.query or parts.fragment:
        raise InputError.of(f"--base-url {text[:100]}: has a `?` or a `#`, and names of files follow it", hint)
    if parts.username or parts.password:
        raise InputError.of("--base-url: has a login, which everyone could read in the catalog", hint)
    return text if text.endswith("/") else f"{text}/"


def encoded(builds: Iterable[Build], address: str) -> bytes:
    """The catalog of some builds.

    Args:
        builds: The builds, sorted by the names of their programs.
        address: The result of `checked_address`.
    """
    content = {"schema": SCHEMA, "base_url": address, "programs": [_program(build, address) for build in builds]}
    return f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode()


def _program(build: Build, address: str) -> dict[str, Any]:
    stated = {key: build.metadata[key] for key in _OF_METADATA if key in build.metadata}
    return {
        "name": build.name,
        "model": build.base,
        "variant": build.variant,
        **stated,
        "key": build.index["key"],
        "executorch": build.index["versions"]["executorch"],
        "backends": build.backends,
        "size": build.size,
        "memory": build.memory,
        "delegated": build.delegated,
        "files": [_file(each, build.folder, address) for each in [*build.shipped, build.index_file]],
        "methods": build.interface,
        "constant_methods": {} if build.report is None else {**build.report["constant_methods"]},
        "applications": build.applications,
    }


def _file(artifact: ArtifactFacts, folder: str, address: str) -> dict[str, Any]:
    path = f"{folder}/{artifact['file']}" if folder else artifact["file"]
    return {**artifact, "file": path, "url": address + quote(path)}
