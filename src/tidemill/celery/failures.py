"""Failures of the client as the errors that kombu and Celery act on.

A broker that is away is a recoverable connection error: kombu connects anew and tries again, by the policy of its user.
What would fail again is an irrecoverable channel error, and reaches the caller at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from amqp.exceptions import (
    IrrecoverableChannelError,
    IrrecoverableConnectionError,
    NotFound,
    RecoverableConnectionError,
)

from tidemill.client.connections.connection import BrokerUnreachable, ConnectionLost
from tidemill.client.connections.sasl import AuthenticationFailed
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ApiError, ConfigError, TidemillError


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except TidemillError as failure:
        raise _translation(failure)(str(failure)) from failure


def _translation(failure: TidemillError) -> type[Exception]:
    kind: type[Exception] = IrrecoverableChannelError
    match failure:
        case BrokerUnreachable() | ConnectionLost():
            kind = RecoverableConnectionError
        case AuthenticationFailed() | ConfigError():
            kind = IrrecoverableConnectionError
        case UnknownTopic():
            kind = NotFound
        case ApiError() if failure.code.retriable:
            kind = RecoverableConnectionError
    return kind
