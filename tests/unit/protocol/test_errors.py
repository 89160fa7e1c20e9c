from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from tidemill.errors import ApiError, ConfigError, ErrorCode, ProtocolError, StorageError, TidemillError


@pytest.mark.parametrize("theirs", list(KioErrorCode), ids=lambda code: code.name)
def test_error_codes_match_kafka(theirs: KioErrorCode) -> None:
    ours = ErrorCode(int(theirs))
    assert ours.name.lower() == theirs.name
    assert ours.retriable == theirs.retriable


def test_codes_have_no_gaps_and_each_its_own_sentence() -> None:
    assert sorted(ErrorCode) == list(range(-1, max(ErrorCode) + 1))
    messages = [code.message for code in ErrorCode]
    assert len(set(messages)) == len(messages)
    assert all(message.endswith(".") for message in messages)


def test_api_error_has_message_of_its_code_by_default() -> None:
    assert ApiError(ErrorCode.NOT_CONTROLLER).message == ErrorCode.NOT_CONTROLLER.message
    error = ApiError(ErrorCode.INVALID_CONFIG, "retention.ms: -5")
    assert error.code is ErrorCode.INVALID_CONFIG
    assert str(error) == "INVALID_CONFIG: retention.ms: -5"


def test_every_error_is_a_tidemill_error() -> None:
    for kind in (ProtocolError, ApiError, ConfigError, StorageError):
        assert issubclass(kind, TidemillError)
