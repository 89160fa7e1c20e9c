"""SaslHandshake (17), SaslAuthenticate (36).

A listener with SASL takes them before dispatch (`requests/sasl.py`). Here they come from a client at a listener without
SASL, and are refused as Kafka refuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.requests.dispatch import Call, Scope, serves
from tidemill.errors import ErrorCode
from tidemill.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker


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
