"""From confluent-kafka's errors to what users catch. Knows codes, decides nothing about what happens next."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from tidemill.sdk.errors import (
    ClientError,
    Fenced,
    InvalidSetting,
    NotAuthorized,
    TopicExists,
    UnknownTopic,
    Unreachable,
)

# The brokers do not answer, or not in time.
NO_ANSWER = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)
# This member no longer has what it speaks of: others have it, or will.
LOST_MEMBERSHIP = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._MAX_POLL_EXCEEDED,
    }
)
REBALANCING = frozenset({KafkaError.REBALANCE_IN_PROGRESS})
FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
_UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)


def cause(failure: KafkaException) -> KafkaError:
    """The error inside of the exception."""
    error: KafkaError = failure.args[0]
    return error


def one_line(text: str) -> str:
    return " ".join(text.split())


def translated(
    error: KafkaError, doing: str, otherwise: type[ClientError] = ClientError, advice: str = ""
) -> ClientError:
    """`doing` is what was attempted, such as "publish to orders". A code without a class of its own is `otherwise`."""
    code = error.code()
    kind = otherwise
    if code in NO_ANSWER:
        kind = Unreachable if otherwise is ClientError else otherwise
    elif code in FENCED:
        kind = Fenced
    elif code in _UNKNOWN:
        kind = UnknownTopic
    elif code in _FORBIDDEN:
        kind = NotAuthorized
    elif code == KafkaError.TOPIC_ALREADY_EXISTS:
        kind = TopicExists
    elif code == KafkaError._INVALID_ARG:
        kind = InvalidSetting
    text = f"{doing}: {one_line(error.str())}"
    return kind(f"{text}; {advice}" if advice else text, code=error.name(), is_retriable=error.retriable())
