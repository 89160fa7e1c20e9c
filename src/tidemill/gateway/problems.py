"""`Problem`: the one exception that becomes an answer, and the one table from Kafka's errors to HTTP.

Every refusal has the body `{"error_code": 40403, "message": "..."}`. The codes are those of Confluent's REST Proxy: the
HTTP status, then two digits where the proxy distinguishes cases of one status. What is not in the table is a 500 with
code 50002.

A message is one readable sentence. It never has a stack trace or a secret in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError
from starlette.responses import Response

from tidemill.client.cluster import known_code
from tidemill.client.connections.connection import BrokerUnreachable, ConnectionLost
from tidemill.client.connections.sasl import AuthenticationFailed
from tidemill.errors import ApiError, ConfigError, ErrorCode, TidemillError
from tidemill.gateway.answers import json_answer

RETRY_AFTER_S = 1


class Problem(Exception):
    """Raise it anywhere below a route. Without an error code the status is the code."""

    def __init__(
        self, status: int, error_code: int | None, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = status if error_code is None else error_code
        self.message = message
        self.headers = dict(headers or {})
        if status in (429, 503):
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    def body(self) -> dict[str, object]:
        return {"error_code": self.error_code, "message": self.message}

    def response(self) -> Response:
        return json_answer(self.body(), self.status, self.headers)


# Kafka's code: status, error code. Whatever is retriable and not here is 503, the rest 500.
_STATUSES: dict[int, tuple[int, int]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, 40403),
    ErrorCode.UNKNOWN_TOPIC_ID: (404, 40403),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, 40403),
    ErrorCode.BROKER_ID_NOT_REGISTERED: (404, 404),
    ErrorCode.RESOURCE_NOT_FOUND: (404, 404),
    ErrorCode.TOPIC_ALREADY_EXISTS: (400, 40002),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (400, 40002),
    ErrorCode.INVALID_PARTITIONS: (400, 40002),
    ErrorCode.INVALID_REPLICATION_FACTOR: (400, 40002),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (400, 40002),
    ErrorCode.INVALID_CONFIG: (400, 40002),
    ErrorCode.INVALID_REQUEST: (400, 40002),
    ErrorCode.INVALID_GROUP_ID: (400, 40002),
    ErrorCode.INVALID_TIMESTAMP: (400, 40002),
    ErrorCode.INVALID_RECORD: (400, 40002),
    ErrorCode.INVALID_PARTITIONS: (400, 40002),
    ErrorCode.OFFSET_OUT_OF_RANGE: (400, 40002),
    ErrorCode.POLICY_VIOLATION: (400, 40002),
    ErrorCode.UNSUPPORTED_VERSION: (400, 40002),
    ErrorCode.NON_EMPTY_GROUP: (400, 40002),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (400, 40002),
    ErrorCode.TOPIC_DELETION_DISABLED: (400, 40002),
    ErrorCode.REASSIGNMENT_IN_PROGRESS: (400, 40002),
    ErrorCode.MESSAGE_TOO_LARGE: (413, 413),
    ErrorCode.RECORD_LIST_TOO_LARGE: (413, 413),
    ErrorCode.SASL_AUTHENTICATION_FAILED: (401, 40101),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: (429, 429),
    ErrorCode.REQUEST_TIMED_OUT: (503, 50003),
    # The producer is replaced after these, so that another try may succeed.
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (503, 50003),
    ErrorCode.INVALID_PRODUCER_EPOCH: (503, 50003),
    ErrorCode.UNKNOWN_PRODUCER_ID: (503, 50003),
    ErrorCode.PRODUCER_FENCED: (503, 50003),
}
# librdkafka's own codes, which are below zero.
_LOCAL_STATUSES: dict[int, tuple[int, int]] = {
    KafkaError._UNKNOWN_TOPIC: (404, 40403),
    KafkaError._UNKNOWN_PARTITION: (404, 40402),
    KafkaError._MSG_TIMED_OUT: (503, 50301),
    KafkaError._TIMED_OUT: (503, 50301),
    KafkaError._TRANSPORT: (503, 50301),
    KafkaError._ALL_BROKERS_DOWN: (503, 50301),
    KafkaError._RESOLVE: (503, 50301),
    KafkaError._QUEUE_FULL: (503, 50301),
    KafkaError._FATAL: (503, 50003),
    KafkaError._PURGE_QUEUE: (503, 50003),
    KafkaError._PURGE_INFLIGHT: (503, 50003),
    KafkaError._AUTHENTICATION: (401, 40101),
    KafkaError._INVALID_ARG: (400, 40002),
}
_TOO_LARGE = "the record is larger than the broker or topic allows (max.message.bytes)"


def problem_of(error: TidemillError | KafkaError) -> Problem:
    """The problem for a cluster that refuses, fails or cannot be reached."""
    if isinstance(error, KafkaError):
        return _of_librdkafka(error)
    match error:
        case ApiError():
            return Problem(*_status(error.code), error.message)
        case AuthenticationFailed():
            return Problem(500, 50002, f"the cluster does not accept the gateway's own credentials: {error}")
        case BrokerUnreachable() | ConnectionLost():
            return Problem(503, 50301, f"the cluster cannot be reached: {error}")
        case ConfigError():
            return Problem(400, 40002, str(error))
    return Problem(500, 50002, str(error))


def _status(code: ErrorCode) -> tuple[int, int]:
    return _STATUSES.get(code) or ((503, 50003) if code.retriable else (500, 50002))


def _of_librdkafka(error: KafkaError) -> Problem:
    code = error.code()
    if code in _LOCAL_STATUSES:
        status, error_code = _LOCAL_STATUSES[code]
        reason = "the cluster did not acknowledge the record: " if status == 503 else ""
        return Problem(status, error_code, reason + error.str())
    known = known_code(code)
    status, error_code = _status(known)
    if status == 413:
        return Problem(status, error_code, _TOO_LARGE)
    # librdkafka's message needs knowledge of the protocol.
    return Problem(
        status, error_code, error.str() if known is ErrorCode.UNKNOWN_SERVER_ERROR else known.message
    )
