"""The reader of what actions ask a remote executor for finds what a strict server would refuse."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.remote import protocol


def number(value: int) -> bytes:
    """A number as messages have it."""
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + number(value >> 7)


def field(key: int, value: Any) -> bytes:
    """A field of a message."""
    if isinstance(value, int):
        return number(key << 3) + number(value)
    data = value.encode() if isinstance(value, str) else value
    return number(key << 3 | 2) + number(len(data)) + data


def fields(*pairs: tuple[int, Any]) -> bytes:
    """A message."""
    return b"".join(field(key, value) for key, value in pairs)


class Blobs(dict[str, bytes]):
    """A store."""

    def add(self, content: bytes) -> bytes:
        """Keeps a blob, and returns its digest."""
        name = hashlib.sha256(content).hexdigest()
        self[name] = content
        return fields((1, name), (2, len(content)))

    def directory(self, files: dict[str, bytes], folders: dict[str, bytes]) -> bytes:
        """Keeps a directory in the order of its names, and returns its digest."""
        rows = [(1, fields((1, name), (2, self.add(content)))) for name, content in files.items()]
        return self.add(fields(*rows, *((2, fields((1, name), (2, digest))) for name, digest in folders.items())))

    def action(self, command: bytes, root: bytes, *more: tuple[int, Any]) -> str:
        """Keeps an action, and returns the name of its blob."""
        data = fields((1, self.add(command)), (2, root), *more)
        self.add(data)
        return hashlib.sha256(data).hexdigest()


COMMAND = ((1, "bazel-out/driver"), (1, "@bazel-out/a.params"), (2, fields((1, "HOME"), (2, "/nonexistent"))))


def problems(*command: tuple[int, Any], files: dict[str, bytes] | None = None) -> list[str]:
    """The problems of an action."""
    blobs = Blobs()
    files = files if files is not None else {"a.params": b"plan\nmodel.yaml\n--rule-target=//a:b\n"}
    root = blobs.directory({"model.yaml": b"x"}, {"bazel-out": blobs.directory(files, {})})
    return protocol.problems(blobs.__getitem__, blobs.action(fields(*COMMAND, *command), root))


def test_an_action_of_ours_has_no_problems() -> None:
    assert problems((3, "bazel-out/a.pte"), (4, "bazel-out/a.export")) == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([(3, "/tmp/a")], "/tmp/a is not below the root"),
        ([(3, "a/../../b")], "a/../../b is not below the root"),
        ([(3, "a"), (4, "a")], "a is there twice"),
        ([(4, "a"), (3, "a/b")], "a/b is in another output"),
        ([(3, "model.yaml")], "model.yaml is an input and an output"),
        ([(1, "--file=/home/somebody/file")], "--file=/home/somebody/file names a place of one machine"),
        ([(2, fields((1, "A"), (2, "1")))], "its variables are not sorted"),
    ],
)
def test_what_a_command_must_not_say(command: list[tuple[int, Any]], expected: str) -> None:
    assert problems(*command) == [expected]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.params": b"--data=x=/home/me/x\n"}, "--data=x=/home/me/x names a place of one machine"),
        ({"b": b"", "a": b""}, "bazel-out/ is not sorted"),
        ({"..": b""}, "bazel-out/.. is no name"),
    ],
)
def test_what_inputs_must_not_be(files: dict[str, bytes], expected: str) -> None:
    assert problems(files=files) == [expected]


def test_a_blob_that_is_not_what_its_digest_says() -> None:
    blobs = Blobs()
    action = blobs.action(fields(*COMMAND), blobs.directory({"model.yaml": b"x"}, {}))
    blobs[hashlib.sha256(b"x").hexdigest()] = b"y"
    assert protocol.problems(blobs.__getitem__, action) == ["model.yaml is not what its digest says"]


@pytest.mark.parametrize(("key", "value"), [(6, b""), (7, 1), (9, b"salt")], ids=["timeout", "not cached", "salt"])
def test_fields_that_our_actions_do_not_use_are_errors(key: int, value: Any) -> None:
    blobs = Blobs()
    action = blobs.action(fields(*COMMAND), blobs.directory({}, {}), (key, value))
    with pytest.raises(ValueError, match=f"^Action has the field {key}$"):
        protocol.problems(blobs.__getitem__, action)


def test_links_among_inputs_are_errors() -> None:
    blobs = Blobs()
    linked = blobs.add(fields((3, fields((1, "link"), (2, "../elsewhere")))))
    with pytest.raises(ValueError, match=r"^Directory has the field 3$"):
        protocol.problems(blobs.__getitem__, blobs.action(fields(*COMMAND), linked))


def test_the_log_of_calls(tmp_path: Path) -> None:
    one, two = "1" * 64, "2" * 64
    request = fields((6, fields((1, one), (2, 150))))
    entries = [
        fields((3, "google.bytestream.ByteStream/Write"), (4, field(8, field(1, f"uploads/{'a' * 36}/blobs/{one}/7")))),
        fields((3, "google.bytestream.ByteStream/Read"), (4, field(5, field(1, field(1, f"blobs/{two}/300"))))),
        fields((3, "build.bazel.remote.execution.v2.Execution/Execute"), (4, field(1, field(1, request)))),
    ]
    log = tmp_path / "calls"
    log.write_bytes(b"".join(number(len(entry)) + entry for entry in entries))
    assert protocol.calls(log) == protocol.Calls([one], [(one, 7)], [(two, 300)])
