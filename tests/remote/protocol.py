"""What Bazel asks a server of the Remote Execution API to run: read from Bazel's log of calls and the server's store.

The messages are those of version 2 of the API. They are read strictly: a field that is not named here is an error, so
whatever else actions begin to use shows in a test.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

SCHEMA: dict[str, dict[int, tuple[str, str]]] = {
    "Digest": {1: ("hash", "text"), 2: ("size", "number")},
    "Action": {1: ("command", "Digest"), 2: ("input_root", "Digest"), 10: ("platform", "Platform")},
    "Command": {
        1: ("arguments", "text"),
        2: ("environment", "Pair"),
        3: ("output_files", "text"),
        4: ("output_directories", "text"),
        5: ("platform", "Platform"),
        7: ("output_paths", "text"),
    },
    "Pair": {1: ("name", "text"), 2: ("value", "text")},
    "Platform": {1: ("properties", "Pair")},
    "Directory": {1: ("files", "File"), 2: ("directories", "Folder")},
    "File": {1: ("name", "text"), 2: ("digest", "Digest"), 4: ("executable", "number")},
    "Folder": {1: ("name", "text"), 2: ("digest", "Digest")},
}
"""The fields that our actions may use. An action has no timeout, no salt and no links among its inputs, is always
cached, and starts in the root of its inputs."""

_DETAILS, _METHOD, _REQUEST, _ACTION = 4, 3, 1, 6
_BLOB = re.compile(rb"(uploads/[0-9a-f-]{36}/)?blobs/([0-9a-f]{64})/(\d+)")
_OF_THE_MACHINE = re.compile(r"(?:^|=)/(?!/|nonexistent$|bin/bash$|usr/local/bin:/usr/bin:/bin$)")
"""The beginning of an absolute path that not every executor has. Labels begin with two slashes."""

Message = dict[str, list[Any]]
Store = Callable[[str], bytes]


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Reads a number, and says where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Reads the fields of a message: numbers and bytes."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        if key & 7 == 0:
            value, at = _number(data, at)
            yield key >> 3, value
            continue
        assert key & 7 == 2, f"a field of the kind {key & 7}"
        size, at = _number(data, at)
        yield key >> 3, data[at : at + size]
        at += size


def message(kind: str, data: bytes) -> Message:
    """Reads a message of `SCHEMA`. Each field is a list."""
    found: Message = {name: [] for name, _ in SCHEMA[kind].values()}
    for number, value in _fields(data):
        if number not in SCHEMA[kind]:
            raise ValueError(f"{kind} has the field {number}")
        name, of = SCHEMA[kind][number]
        if of == "number":
            found[name].append(value)
        else:
            found[name].append(value.decode() if of == "text" else message(of, value))
    return found


@dataclass
class Calls:
    """What a build told a server.

    Attributes:
        actions: The digests of the actions that it asked the server to run.
        sent: The size of each blob that it sent, with its digest; and the same for those that it received.
        received: The same for those that it received.
    """

    actions: list[str]
    sent: list[tuple[str, int]]
    received: list[tuple[str, int]]


def calls(log: Path) -> Calls:
    """Reads the log that `--experimental_remote_grpc_log` names."""
    data, at = log.read_bytes(), 0
    found = Calls([], [], [])
    while at < len(data):
        size, at = _number(data, at)
        entry = dict(_fields(data[at : at + size]))
        at += size
        details = entry.get(_DETAILS, b"")
        for upload, digest, length in _BLOB.findall(details):
            (found.sent if upload else found.received).append((digest.decode(), int(length)))
        if entry[_METHOD].endswith(b"/Execute"):
            [(_, execute)] = _fields(details)
            request = dict(_fields(dict(_fields(execute))[_REQUEST]))
            found.actions += message("Digest", request[_ACTION])["hash"]
    return found


def files(store: Store, root: str, below: str = "") -> Iterator[tuple[str, str, int]]:
    """The files of a directory in a store: path, digest and size."""
    directory = message("Directory", store(root))
    for file in directory["files"]:
        yield below + file["name"][0], file["digest"][0]["hash"][0], sum(file["digest"][0]["size"])
    for folder in directory["directories"]:
        yield from files(store, folder["digest"][0]["hash"][0], f"{below}{folder['name'][0]}/")


def inputs(store: Store, action: str) -> list[tuple[str, str, int]]:
    """The input files of an action."""
    return list(files(store, message("Action", store(action))["input_root"][0]["hash"][0]))


def arguments(store: Store, action: str) -> list[str]:
    """The command line of an action."""
    words: list[str] = message("Command", store(message("Action", store(action))["command"][0]["hash"][0]))["arguments"]
    return words


def problems(store: Store, action: str, checked: set[str] | None = None) -> list[str]:
    """Says what of an action a strict server would refuse, or what not every executor has.

    Args:
        store: Reads a blob by its digest.
        action: The digest of the action.
        checked: The digests of blobs that were right before: they are not read again. It grows.
    """
    said = message("Action", store(action))
    command = message("Command", store(said["command"][0]["hash"][0]))
    environment = [pair["name"][0] for pair in command["environment"]]
    outputs = command["output_files"] + command["output_directories"] + command["output_paths"]
    found = _of_outputs(outputs)
    found += [] if environment == sorted(set(environment)) else ["its variables are not sorted"]
    found += _of_words([*command["arguments"], *(value for pair in command["environment"] for value in pair["value"])])
    found += list(_of_directory(store, said["input_root"][0]["hash"][0], "", set() if checked is None else checked))
    for path, digest, _ in inputs(store, action):
        found += [f"{path} is an input and an output"] if path in outputs else []
        found += _of_words(store(digest).decode().splitlines()) if path.endswith(".params") else []
    return found


def _of_outputs(outputs: list[str]) -> list[str]:
    """Says which outputs are not below the root, twice there, or inside of another one."""
    found = [f"{path} is not below the root" for path in outputs if path.startswith("/") or ".." in path.split("/")]
    found += [f"{path} is there twice" for path in set(outputs) if outputs.count(path) > 1]
    return found + [
        f"{path} is in another output" for path in outputs if {*map(str, PurePosixPath(path).parents)} & {*outputs}
    ]


def _of_words(words: list[str]) -> list[str]:
    """Says which words name places of one machine."""
    return [f"{word} names a place of one machine" for word in words if _OF_THE_MACHINE.search(word)]


def _of_directory(store: Store, digest: str, below: str, checked: set[str]) -> Iterator[str]:
    """Says which names in a directory are wrong, and which blobs are not what their digests say."""
    directory = message("Directory", store(digest))
    for names in ([node["name"][0] for node in directory[kind]] for kind in ("files", "directories")):
        if names != sorted(names):
            yield f"{below or '/'} is not sorted"
    every = [node["name"][0] for kind in ("files", "directories") for node in directory[kind]]
    yield from (f"{below}{name} is there twice" for name in set(every) if every.count(name) > 1)
    yield from (f"{below}{name} is no name" for name in every if "/" in name or name in ("", ".", ".."))
    for node in directory["files"]:
        wanted = node["digest"][0]
        if f"{wanted}" in checked:
            continue
        checked.add(f"{wanted}")
        content = store(wanted["hash"][0])
        if len(content) != sum(wanted["size"]) or hashlib.sha256(content).hexdigest() != wanted["hash"][0]:
            yield f"{below}{node['name'][0]} is not what its digest says"
    for node in directory["directories"]:
        yield from _of_directory(store, node["digest"][0]["hash"][0], f"{below}{node['name'][0]}/", checked)
