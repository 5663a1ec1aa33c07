"""The messages of Bazel's worker protocol, without generated code. It has only the few fields that a worker needs.

It follows `worker_protocol.proto` of Bazel 7. A stream is a sequence of messages, each after its length as a varint. A
message is a sequence of fields, each after a varint with its number and its wire type. Unknown fields are skipped:
Bazel may add some, and this worker does not need the digests of inputs because it keeps nothing made from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES = 10  # enough for 64 bits
_MESSAGE_BYTES = 1 << 30  # far more than any list of arguments; a longer message means that the stream is damaged


class ProtocolError(Exception):
    """The stream is not a sequence of messages."""


@dataclass(frozen=True)
class WorkRequest:
    """A request to run a command, or to cancel one.

    Attributes:
        arguments: The arguments of the command.
        inputs: Paths of the files that the command may read, relative to the worker's directory.
        request_id: The id of the request, which the response repeats; 0 if the worker gets one request at a time.
        cancel: Cancels the request that has this id, and runs nothing.
        sandbox_dir: The directory to work in, relative to the worker's directory; empty for the worker's directory
            itself.
    """

    arguments: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    request_id: int = 0
    cancel: bool = False
    sandbox_dir: str = ""


@dataclass(frozen=True)
class WorkResponse:
    """The result of a request.

    Attributes:
        exit_code: The exit code of the command.
        output: Everything that the command printed.
        request_id: The id of the request.
        was_cancelled: The request was ended before it was done.
    """

    exit_code: int = 0
    output: str = ""
    request_id: int = 0
    was_cancelled: bool = False


class Messages:
    """Splits a stream into messages. The stream may arrive in pieces of any size."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Adds a piece of the stream. Yields the messages that are now complete.

        Raises:
            ProtocolError: A length is not valid.
        """
        self.rest += data
        while (head := _varint(self.rest, 0)) is not None:
            length, start = head
            if length > _MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes")
            if len(self.rest) < start + length:
                return
            message, self.rest = self.rest[start : start + length], self.rest[start + length :]
            yield message


def decode_request(message: bytes) -> WorkRequest:
    """Decodes a request. The message does not include its length.

    Raises:
        ProtocolError: The bytes are not a request.
    """
    arguments: list[str] = []
    inputs: list[str] = []
    numbers: dict[int, int] = {}
    sandbox_dir = ""
    for field, value in _fields(message):
        if isinstance(value, int):
            numbers[field] = value
        elif field == 1:
            arguments.append(_text(value))
        elif field == 2:
            inputs += [_text(path) for number, path in _fields(value) if number == 1 and isinstance(path, bytes)]
        elif field == 6:
            sandbox_dir = _text(value)
    request_id = numbers.get(3, 0) & 0xFFFFFFFF
    request_id -= request_id >> 31 << 32  # it is a signed number
    return WorkRequest(tuple(arguments), tuple(inputs), request_id, bool(numbers.get(4)), sandbox_dir)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")  # as Python decodes strings of the operating system


def encode_response(response: WorkResponse) -> bytes:
    """Encodes a response, with its length in front."""
    output = response.output.encode("utf-8", "replace")
    fields = (
        _encode_number(1, response.exit_code)
        + (_encode_varint(2 << 3 | _LENGTH) + _encode_varint(len(output)) + output if output else b"")
        + _encode_number(3, response.request_id)
        + _encode_number(4, response.was_cancelled)
    )
    return _encode_varint(len(fields)) + fields


def _encode_number(field: int, value: int) -> bytes:
    """Encodes a field. Empty if the field has its default value."""
    return _encode_varint(field << 3 | _VARINT) + _encode_varint(value) if value else b""


def _encode_varint(value: int) -> bytes:
    """Encodes seven bits in each byte, the lowest first. Negative numbers are encoded as their 64 bits."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _varint(data: bytes, start: int) -> tuple[int, int] | None:
    """Decodes the number at `start`. Returns it and the position after it, or None if it is not complete."""
    value = 0
    for count, byte in enumerate(data[start : start + _VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, start + count + 1
    if len(data) - start >= _VARINT_BYTES:
        raise ProtocolError("a number of more than 64 bits")
    return None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, by number. Varints are numbers, all other values are bytes."""
    position = 0
    while position < len(message):
        key, position = _whole_varint(message, position)
        field, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _whole_varint(message, position)
            yield field, value
            continue
        if wire_type == _LENGTH:
            size, position = _whole_varint(message, position)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise ProtocolError(f"a field of the unknown wire type {wire_type}")
        if position + size > len(message):
            raise ProtocolError("a field that is longer than its message")
        yield field, message[position : position + size]
        position += size


def _whole_varint(message: bytes, position: int) -> tuple[int, int]:
    decoded = _varint(message, position)
    if decoded is None:
        raise ProtocolError("a message that ends inside a number")
    return decoded
