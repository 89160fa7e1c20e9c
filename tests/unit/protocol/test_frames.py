"""Headers and frames, byte by byte."""

from __future__ import annotations

import struct

import pytest

from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol import frames
from tidemill.protocol.api import APIS
from tidemill.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from tidemill.protocol.frames import (
    RequestHeader,
    parse_frame_length,
    parse_request_header,
    parse_response,
    request_frame,
    response_frame,
    response_header,
)
from tidemill.protocol.schema import decode_exact

METADATA, API_VERSIONS, FETCH, SASL_HANDSHAKE = 3, 18, 1, 17


def _fixed(api_key: int, version: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">hhi", api_key, version, correlation_id)


def test_header_version_1() -> None:
    frame = memoryview(_fixed(METADATA, 8) + b"\x00\x03abc" + b"body")
    assert parse_request_header(frame) == RequestHeader(METADATA, 8, 7, "abc", 13)


def test_header_version_2_ends_in_tagged_fields() -> None:
    assert parse_request_header(_fixed(METADATA, 9) + b"\x00\x01a" + b"\x00" + b"body").body_position == 12
    tagged = _fixed(METADATA, 9) + b"\x00\x01a" + b"\x01\x05\x02xy" + b"body"
    assert parse_request_header(tagged) == RequestHeader(METADATA, 9, 7, "a", 16)


def test_client_id_may_be_null_or_empty() -> None:
    assert parse_request_header(_fixed(METADATA, 8) + b"\xff\xff").client_id is None
    assert parse_request_header(_fixed(METADATA, 8) + b"\x00\x00").client_id == ""


def test_an_api_without_flexible_versions_never_has_tagged_fields() -> None:
    assert parse_request_header(_fixed(SASL_HANDSHAKE, 1) + b"\x00\x00" + b"\x00\x05").body_position == 10


def test_an_unknown_api_is_read_far_enough_to_answer() -> None:
    header = parse_request_header(_fixed(9999, 42, -3) + b"\x00\x01x" + b"\xff\xff\xff")
    assert header == RequestHeader(9999, 42, -3, "x", 11)


def test_api_versions_of_a_version_from_the_future_is_read_leniently() -> None:
    start = _fixed(API_VERSIONS, 99) + b"\x00\x01x"
    assert parse_request_header(start + b"\x00" + b"\x02a").body_position == len(start) + 1
    for unreadable in (b"", b"\xff", b"\xff\xff\xff\xff\xff\xff"):
        assert parse_request_header(start + unreadable).client_id == "x"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03\x00\x09\x00\x00",
        _fixed(METADATA, 8),
        _fixed(METADATA, 8) + b"\x00\x05abcd",
        _fixed(METADATA, 8) + b"\xff\xfe",
        _fixed(METADATA, 8) + b"\x00\x01\xff",
        _fixed(METADATA, 9) + b"\x00\x00",
        _fixed(METADATA, 9) + b"\x00\x00" + b"\x01\x00\x05a",
    ],
)
def test_a_broken_header_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_request_header(memoryview(frame))


def test_response_headers() -> None:
    assert response_header(METADATA, 8, 7) == b"\x00\x00\x00\x07"
    assert response_header(METADATA, 9, 7) == b"\x00\x00\x00\x07\x00"
    assert response_header(9999, 9, 7) == b"\x00\x00\x00\x07"
    # KIP-511: a client that does not know our versions yet must be able to read this one.
    assert all(response_header(API_VERSIONS, version, 7) == b"\x00\x00\x00\x07" for version in range(6))


def test_frame_lengths_have_a_limit() -> None:
    assert parse_frame_length(b"\x00\x00\x00\x64", 0, limit=100) == 100
    for raw in (b"\x00\x00\x00\x65", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"):
        with pytest.raises(ProtocolError, match="frame of"):
            parse_frame_length(raw, 0, limit=100)
    with pytest.raises(ProtocolError):
        parse_frame_length(b"\x00\x00\x00", 0, limit=100)


def test_request_frame_of_a_classic_version() -> None:
    frame = request_frame(ApiVersionsRequest(), 0, 1, "me")
    assert frame.hex(" ") == "00 00 00 0c 00 12 00 00 00 00 00 01 00 02 6d 65"


def test_request_frame_of_a_flexible_version() -> None:
    message = ApiVersionsRequest(client_software_name="kcat", client_software_version="1.7")
    frame = request_frame(message, 3, 1, None)
    assert frame.hex(" ") == (
        "00 00 00 15"  # length
        " 00 12 00 03 00 00 00 01 ff ff 00"  # header v2, no client id, no tagged fields
        " 05 6b 63 61 74 04 31 2e 37 00"  # two compact strings, no tagged fields
    )
    header = parse_request_header(frame[4:])
    assert decode_exact(ApiVersionsRequest, header.api_version, frame[4:], header.body_position) == message


@pytest.mark.parametrize("version", [8, 12])
def test_responses_round_trip(version: int) -> None:
    message = MetadataResponse(cluster_id="c", controller_id=3)
    frame = response_frame(message, version, 77)
    assert parse_frame_length(frame, 0, limit=1000) == len(frame) - 4
    assert parse_response(MetadataResponse, version, memoryview(frame)[4:]) == (77, message)


def test_an_unsupported_api_versions_request_is_answered_in_version_0() -> None:
    # The frame that a client of the future parses: header v0, body v0 (KIP-511).
    frame = response_frame(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0, 5)
    assert frame.hex(" ") == "00 00 00 0a 00 00 00 05 00 23 00 00 00 00"


def test_requests_round_trip_through_the_header() -> None:
    for version in range(14):
        frame = request_frame(MetadataRequest(), version, 5, "client")
        header = parse_request_header(memoryview(frame)[4:])
        assert header[:4] == (METADATA, version, 5, "client")
        assert decode_exact(MetadataRequest, version, frame[4:], header.body_position) == MetadataRequest()


def test_flexible_header_rule_covers_every_api() -> None:
    for key, api in APIS.items():
        if api.flexible_since is None or key == API_VERSIONS:
            continue
        assert frames.has_flexible_response_header(key, api.flexible_since)
        assert not frames.has_flexible_response_header(key, api.flexible_since - 1)
