"""The client side of Bazel's worker protocol, with Google's own implementation of its format."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING, _MESSAGE, _BYTES, _INT32, _BOOL = 9, 11, 12, 5, 8
_ONE, _MANY = 1, 3
# As in Bazel's worker_protocol.proto.
_MESSAGES = {
    "Input": [("path", 1, _STRING, _ONE), ("digest", 2, _BYTES, _ONE)],
    "WorkRequest": [
        ("arguments", 1, _STRING, _MANY),
        ("inputs", 2, _MESSAGE, _MANY),
        ("request_id", 3, _INT32, _ONE),
        ("cancel", 4, _BOOL, _ONE),
        ("verbosity", 5, _INT32, _ONE),
        ("sandbox_dir", 6, _STRING, _ONE),
    ],
    "WorkResponse": [
        ("exit_code", 1, _INT32, _ONE),
        ("output", 2, _STRING, _ONE),
        ("request_id", 3, _INT32, _ONE),
        ("was_cancelled", 4, _BOOL, _ONE),
    ],
}
WAIT_SECONDS = 300.0


def _types() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="worker_protocol.proto", package="blaze.worker", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, label in fields:
            of = ".blaze.worker.Input" if kind == _MESSAGE else None
            described.field.add(name=name, number=number, type=kind, label=label, type_name=of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"blaze.worker.{name}")) for name in _MESSAGES
    }


TYPES = _types()


def varint(value: int) -> bytes:
    """Encodes the length that precedes a message."""
    encoded = b""
    while value > 0x7F:
        encoded, value = encoded + bytes([value & 0x7F | 0x80]), value >> 7
    return encoded + bytes([value])


def framed(message: Any) -> bytes:
    """Returns a message with its length in front."""
    data: bytes = message.SerializeToString()
    return varint(len(data)) + data


def request(*arguments: object, request_id: int = 0, inputs: Iterable[str] = (), **fields: Any) -> bytes:
    """Returns an encoded request. Without inputs, the worker runs it in the directory in which the worker was
    started."""
    message = TYPES["WorkRequest"](arguments=map(str, arguments), request_id=request_id, verbosity=1, **fields)
    for path in inputs:
        message.inputs.add(path=path, digest=b"0123")
    return framed(message)


class Worker:
    """A worker process.

    Args:
        directory: The directory in which it starts.
        environment: Environment variables in addition to those of this process.
    """

    def __init__(self, directory: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "etbuild", "--persistent_worker"],
            cwd=directory,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdin
        assert self.process.stdout
        self.requests, self.responses = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.received = b""

    def send(self, *arguments: object, **fields: Any) -> None:
        """Sends a request."""
        self.send_bytes(request(*arguments, **fields))

    def send_bytes(self, data: bytes) -> None:
        """Sends bytes, which may not be a valid request."""
        while data:
            data = data[os.write(self.requests, data) :]

    def receive(self, seconds: float = WAIT_SECONDS) -> Any:
        """Returns the next response. A worker without one in time is ended, since the next request would get it."""
        until = time.monotonic() + seconds
        while (response := self._take()) is None:
            ready, _, _ = select.select([self.responses], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self.end()
                raise AssertionError("no response in time")
            data = os.read(self.responses, 1 << 16)
            assert data, "the worker has ended"
            self.received += data
        return response

    def ask(self, *arguments: object, **fields: Any) -> Any:
        """Sends a request and returns the response."""
        self.send(*arguments, **fields)
        return self.receive()

    def _take(self) -> Any:
        length = 0
        for place, byte in enumerate(self.received):
            length |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                end = place + 1 + length
                if len(self.received) < end:
                    return None
                response = TYPES["WorkResponse"]()
                response.ParseFromString(self.received[place + 1 : end])
                self.received = self.received[end:]
                return response
        return None

    def close(self) -> int:
        """Closes the worker's input and returns its exit code."""
        if self.process.stdin:
            self.process.stdin.close()
        return self.process.wait(WAIT_SECONDS)

    def end(self) -> None:
        """Ends the worker in any state."""
        self.process.kill()
        self.process.wait()

    def children(self) -> list[int]:
        """Returns the living descendants of the worker."""
        return descendants(self.process.pid)


def descendants(pid: int) -> list[int]:
    """Returns the living descendants of a process."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [each for child in children for each in (child, *descendants(child)) if alive(each)]


def alive(pid: int) -> bool:
    """Returns whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    """Waits until a condition is true. Fails after a number of seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.02)
