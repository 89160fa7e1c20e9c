"""Every decoder against bytes that are not what they should be: a value or a ProtocolError, nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.errors import ProtocolError
from tidemill.protocol.frames import parse_request_header
from tidemill.protocol.schema import (
    Message,
    decode,
    decode_exact,
    decode_from,
    decode_in_steps,
    encode,
    encode_in_steps,
)
from tidemill.protocol.steps import run_steps

from .message_samples import Sampler, label, message_types, same

CLASSES = message_types()


def _versions(cls: type[Message]) -> range:
    return range(cls.versions.min, cls.versions.max + 1)


@pytest.mark.parametrize("cls", CLASSES, ids=label)
@settings(max_examples=4, deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_round_trip_of_every_version(cls: type[Message], seed: int) -> None:
    for version in _versions(cls):
        message = Sampler(seed).message(cls, version)
        raw = encode(message, version)
        assert run_steps(encode_in_steps(message, version)) == raw
        assert same(run_steps(decode_in_steps(cls, version, raw)), message)
        for buffer in (raw, bytearray(raw), memoryview(raw)):
            assert same(decode_exact(cls, version, buffer), message)
        shifted = memoryview(b"head" + raw + b"tail")
        decoded, end = decode_from(cls, version, shifted, 4)
        assert same(decoded, message)
        assert end == 4 + len(raw)


@pytest.mark.parametrize("cls", CLASSES, ids=label)
@settings(max_examples=4, deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_a_message_cut_anywhere_is_refused(cls: type[Message], seed: int) -> None:
    dice = random.Random(seed)
    for version in _versions(cls):
        raw = encode(Sampler(seed).message(cls, version), version)
        for length in {dice.randrange(len(raw)) for _ in range(12)} if raw else ():
            with pytest.raises(ProtocolError):
                decode(cls, version, raw[:length])
            with pytest.raises(ProtocolError):
                run_steps(decode_in_steps(cls, version, raw[:length]))


@pytest.mark.parametrize("cls", CLASSES, ids=label)
@settings(max_examples=4, deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_and_random_bytes_never_escape(cls: type[Message], seed: int) -> None:
    dice = random.Random(seed)
    for version in _versions(cls):
        raw = encode(Sampler(seed).message(cls, version), version)
        for _ in range(6):
            _decodes_or_refuses(cls, version, _damaged(raw, dice))
            _decodes_or_refuses(cls, version, dice.randbytes(dice.choice((0, 1, 7, 40, 200))))


@settings(max_examples=examples(300), deadline=None, database=None)
@given(st.binary(max_size=60))
def test_request_headers_never_escape(frame: bytes) -> None:
    try:
        header = parse_request_header(memoryview(frame))
    except ProtocolError:
        return
    assert 0 <= header.body_position <= len(frame)


def _damaged(raw: bytes, dice: random.Random) -> bytes:
    damaged = bytearray(raw)
    for _ in range(dice.choice((1, 1, 2, 5))):
        if damaged:
            damaged[dice.randrange(len(damaged))] = dice.choice((0x00, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    if dice.random() < 0.3:
        position = dice.randrange(len(damaged) + 1)
        damaged[position:position] = dice.randbytes(dice.choice((1, 4, 8)))
    return bytes(damaged)


def _decodes_or_refuses(cls: type[Message], version: int, raw: bytes) -> None:
    try:
        message = decode(cls, version, raw)
    except ProtocolError:
        return
    # What was understood can be said again, and means the same.
    assert same(decode_exact(cls, version, encode(message, version)), message)
