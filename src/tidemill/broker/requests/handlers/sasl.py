"""Refuses SaslHandshake and SaslAuthenticate at a listener without SASL, as Kafka does.

A listener with SASL takes them before dispatch (`requests/security/sasl.py`).

Versions, and what each one changed:

    SaslHandshake (17), from 0 (KIP-43)
       1  tokens follow in SaslAuthenticate (KIP-152)
    SaslAuthenticate (36), from 0 (KIP-152)
       1  the session's lifetime (KIP-368)
       2  flexible (KIP-482)
"""

from __future__ import annotations

from tidemill.broker.requests.api_table import Scope, serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.errors import ErrorCode
from tidemill.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


@serves(SaslHandshakeRequest, scope=Scope.BOTH)
def sasl_handshake(broker: Broker, call: Call, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


@serves(SaslAuthenticateRequest, scope=Scope.BOTH)
def sasl_authenticate(
    broker: Broker, call: Call, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
