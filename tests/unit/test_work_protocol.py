"""The worker protocol's format, against Google's own implementation of it."""

from __future__ import annotations

import pytest

from etplugins.worker.protocol import (
    Messages,
    ProtocolError,
    WorkRequest,
    WorkResponse,
    decode_request,
    encode_response,
)
from tests.helpers.worker_client import TYPES, framed, request, varint

REQUEST = WorkRequest(("lower", "--data=ä=b", ""), ("model.py", "bazel-out/ä"), 7, True, "sandbox/é")


def messages(*pieces: bytes) -> list[bytes]:
    cut = Messages()
    return [message for piece in pieces for message in cut.feed(piece)]


def encoded(wanted: WorkRequest) -> bytes:
    fields = {"cancel": wanted.cancel, "sandbox_dir": wanted.sandbox_dir}
    return request(*wanted.arguments, inputs=wanted.inputs, request_id=wanted.request_id, **fields)


@pytest.mark.parametrize(
    "wanted", [WorkRequest(), REQUEST, WorkRequest(("x" * 70000,), (), -5), WorkRequest((), ("a", "b"), 2**31 - 1)]
)
def test_a_request_is_what_was_sent(wanted: WorkRequest) -> None:
    assert [decode_request(message) for message in messages(encoded(wanted))] == [wanted]


@pytest.mark.parametrize(
    "wanted",
    [
        WorkResponse(),
        WorkResponse(1, "ö\n" * 200, 2**31 - 1, True),
        WorkResponse(-1, "a lone \udcff", -3),
    ],
)
def test_a_response_is_what_was_meant(wanted: WorkResponse) -> None:
    (message,) = messages(encode_response(wanted))
    read = TYPES["WorkResponse"].FromString(message)
    shown = wanted.output.replace("\udcff", "?")
    assert WorkResponse(read.exit_code, read.output, read.request_id, read.was_cancelled) == WorkResponse(
        wanted.exit_code, shown, wanted.request_id, wanted.was_cancelled
    )


def test_messages_arrive_in_any_pieces() -> None:
    stream = encoded(REQUEST) + encoded(WorkRequest()) + encoded(WorkRequest(("x" * 300,)))
    whole = messages(stream)
    assert len(whole) == 3
    assert messages(*(bytes([byte]) for byte in stream)) == whole


def test_an_empty_message_is_a_request() -> None:
    assert [decode_request(message) for message in messages(b"\0")] == [WorkRequest()]


def test_unknown_fields_are_skipped() -> None:
    unknown = (
        b"\xc8\x01\x96\x01"  # 25, a varint
        b"\xd1\x01" + bytes(8) +  # 26, eight bytes
        b"\xda\x01\x03abc"  # 27, a length and that many bytes
        b"\xe5\x01" + bytes(4)  # 28, four bytes
    )  # fmt: skip
    (message,) = messages(encoded(REQUEST))
    assert decode_request(unknown + message + unknown) == REQUEST


def test_a_stream_that_ends_inside_a_message_leaves_a_rest() -> None:
    stream = encoded(REQUEST)
    for length in range(1, len(stream)):
        cut = Messages()
        assert list(cut.feed(stream[:length])) == []
        assert cut.rest


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"\xff" * 10, "more than 64 bits"),
        (varint(1 << 40), "a message of 1099511627776 bytes"),
        (b"\x02\x0a\x05", "longer than its message"),
        (b"\x01\x80", "ends inside a number"),
        (b"\x01\x18", "ends inside a number"),
        (b"\x02\x0b\x00", "wire type 3"),
    ],
)
def test_damage_is_reported(stream: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        list(map(decode_request, messages(stream)))


def test_a_damaged_request_is_an_error_or_another_valid_request() -> None:
    (message,) = messages(framed(TYPES["WorkRequest"](arguments=["lower", "x"], request_id=300)))
    for place in range(len(message)):
        for value in range(256):
            try:
                decode_request(message[:place] + bytes([value]) + message[place + 1 :])
            except ProtocolError:
                continue
