"""What a build and a warm process say to each other: a message of JSON in each direction, with descriptors."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_MOST_BYTES = 1 << 24
_MOST_DESCRIPTORS = 8


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Sends a message.

    Raises:
        OSError: The other side is gone.
    """
    data = json.dumps(message).encode("utf-8", "surrogateescape")
    head = _LENGTH.pack(len(data))
    if descriptors:
        socket.send_fds(channel, [head], descriptors)
    else:
        channel.sendall(head)
    channel.sendall(data)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receives a message.

    Raises:
        EOFError: The other side is gone, or has sent something else.
        OSError: The same.
    """
    head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, _MOST_DESCRIPTORS)
    if len(head) != _LENGTH.size or (size := _LENGTH.unpack(head)[0]) > _MOST_BYTES:
        raise EOFError
    data = b""
    while len(data) < size:
        if not (part := channel.recv(size - len(data))):
            raise EOFError
        data += part
    try:
        message = json.loads(data.decode("utf-8", "surrogateescape"))
    except ValueError:
        raise EOFError from None
    return message, descriptors
