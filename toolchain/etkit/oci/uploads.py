"""Uploads of blobs. One that breaks continues where it broke, if the registry still knows it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import IO

from etkit.oci.attempts import Broken, Count, Told
from etkit.oci.connection import PASSING, answer
from etkit.oci.descriptors import Descriptor
from etkit.oci.exchange import Exchange, NoAccess

_BLOCK = 1 << 20


def mount(exchange: Exchange, blob: Descriptor, other: str) -> bool:
    """Takes a blob from another repository of the registry, without sending it.

    Returns:
        Whether the repository has the blob now.
    """
    place = f"blobs/uploads/?mount={blob.digest}&from={other}"
    try:
        # A registry that does not mount it begins an upload, and ends that by itself. To delete it would need a login
        # with the right to delete.
        with exchange.request("POST", place, kind=f"mount from {other}") as response:
            return bool(response.status_code == HTTPStatus.CREATED)
    except NoAccess:  # to the other repository; if it is this one, the upload says so
        return False


def upload(exchange: Exchange, blob: Descriptor, source: Path, told: Told) -> None:
    """Sends a file as a blob.

    Raises:
        BuildError: The registry does not take it.
        OSError: The file cannot be read.
    """
    place, count = "", Count(told)
    hint = "try again: what has arrived is not sent again"
    for again in exchange.attempts(count, f"{blob.digest[7:23]} cannot be sent", hint):
        with again, source.open("rb") as file:
            if place:
                place, taken = _taken(exchange, place)
                count.reach(taken)
            if not place:
                with exchange.request("POST", "blobs/uploads/") as begun:
                    exchange.expect(begun, HTTPStatus.ACCEPTED)
                    place = exchange.address(begun.headers.get("Location", ""))
            if count.done < blob.size:
                place = _send(exchange, place, _Sent(file, count, blob.size, exchange.stop))
            joint = "&" if "?" in place else "?"
            with exchange.request("PUT", f"{place}{joint}digest={blob.digest}") as response:
                if response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
                    raise Broken("the registry has forgotten the upload")
                exchange.expect(response, HTTPStatus.CREATED)


def _send(exchange: Exchange, place: str, body: _Sent) -> str:
    """Sends the rest of a blob. Returns the address of the next request."""
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Range": f"{body.start}-{body.start + body.len - 1}",
    }
    with exchange.request("PATCH", place, headers, data=body) as response:
        if response.status_code in PASSING:
            raise Broken(answer(response))
        exchange.expect(response, HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT)
        return exchange.address(response.headers.get("Location", ""))


def _taken(exchange: Exchange, place: str) -> tuple[str, int]:
    """Where an upload goes on, and how many bytes of it have arrived; `""` if the registry has forgotten it."""
    with exchange.request("GET", place) as response:
        if response.status_code != HTTPStatus.NO_CONTENT:
            return "", 0
        _, _, last = response.headers.get("Range", "").partition("-")
        # 0-0 says that nothing has arrived, or one byte: begin again then.
        taken = int(last) + 1 if last.isdecimal() and last != "0" and len(last) < 20 else 0
        return (exchange.address(response.headers.get("Location", place)), taken) if taken else ("", 0)


class _Sent:
    """The rest of a file as the body of a request. requests asks for `len`."""

    def __init__(self, file: IO[bytes], count: Count, end: int, stop: threading.Event) -> None:
        self.start, self.len = count.done, end - count.done
        self._file, self._count, self._end, self._stop = file, count, end, stop
        file.seek(count.done)

    def read(self, amount: int = _BLOCK) -> bytes:
        if self._stop.is_set():
            raise OSError("stopped")
        block = self._file.read(min(self._end - self._count.done, amount))
        self._count.reach(self._count.done + len(block))
        return block

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read():
            yield block
