"""The error hierarchy, and Kafka's error codes.

    TidemillError
    ├── ProtocolError    bytes from a peer that do not parse: its connection is closed
    ├── ApiError         an outcome that the API defines: the client gets its ErrorCode
    ├── ConfigError      a setting that is unknown or not allowed: nothing is started or changed
    └── StorageError     a failing disk or corrupt data: that log goes offline, the others continue

`ErrorCode` is Kafka's table. `retriable` tells a client whether the same request may succeed later.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING


class ErrorCode(IntEnum):
    """Kafka's table of error codes."""

    retriable: bool
    message: str

    if not TYPE_CHECKING:  # A type checker would otherwise require three arguments in ErrorCode(3).

        def __new__(cls, code: int, retriable: bool, message: str) -> ErrorCode:
            member = int.__new__(cls, code)
            member._value_ = code
            member.retriable = retriable
            member.message = message
            return member

    UNKNOWN_SERVER_ERROR = -1, False, "The server failed in a way it did not expect."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset lies outside of what the partition holds."
    CORRUPT_MESSAGE = 2, True, "The record batch is damaged: checksum, size or content do not agree."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This broker does not have the topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker is not the replica that the request needs."
    REQUEST_TIMED_OUT = 7, True, "The request was not completed in time."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available on this broker."
    MESSAGE_TOO_LARGE = 10, False, "The record batch is larger than the broker or topic allows."
    STALE_CONTROLLER_EPOCH = 11, False, "Another controller has taken over."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata of the committed offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection ended before the response arrived."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "The coordinator is not available."
    NOT_COORDINATOR = 16, True, "This broker is not the coordinator."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not valid, or the topic does not allow this."
    RECORD_LIST_TOO_LARGE = 18, False, "The record batch is larger than a log segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than min.insync.replicas asks for."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Written, but too few replicas are in sync."
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member shares no protocol with the rest of the group."
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside of what the broker allows."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; join it again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offsets to commit are too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorized for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorized for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is outside of what the topic accepts."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The SASL mechanism is not enabled."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, False, "This version of the API is not supported."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic with this name exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is below 1 or above the number of brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "The configuration is not valid."
    NOT_CONTROLLER = 41, True, "This node is not the active controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or breaks the rules of its API."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The record format does not support this."
    POLICY_VIOLATION = 44, False, "A policy of the cluster forbids this."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The batch does not follow the producer's last one."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The batch was already written."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is not the current one."
    INVALID_TXN_STATE = 48, False, "The transaction's state does not allow this."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is longer than the broker allows."
    CONCURRENT_TRANSACTIONS = 51, True, "The previous change to the transaction is still under way."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "Another transaction coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorized for the transactional id."
    SECURITY_DISABLED = 54, False, "No authorizer is configured."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not tried, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The disk that holds the partition has failed."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "Nothing is known of this producer, perhaps because its records expired."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "Only the token's owner or a renewer may do this."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "This connection may not ask for delegation tokens."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorized for the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The principal type is not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "There is no such fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session's epoch does not match."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener like the one that was asked."
    TOPIC_DELETION_DISABLED = 73, False, "Topic deletion is switched off."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch in the request is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch in the request is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The client cannot read the partition's compression type."
    STALE_BROKER_EPOCH = 77, False, "The broker epoch is not the current one."
    OFFSET_NOT_AVAILABLE = 78, True, "A newly elected leader does not know the high watermark yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id given here."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica may become leader."
    ELECTION_NOT_NEEDED = 84, True, "The partition has the leader it should have."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic, so its offsets must stay."
    INVALID_RECORD = 87, False, "A record breaks a rule of its topic."
    UNSTABLE_OFFSET_COMMIT = 88, True, "A transaction that commits offsets is still open."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The quota is used up."
    PRODUCER_FENCED = 90, False, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "There is no such resource."
    DUPLICATE_RESOURCE = 92, False, "The request names a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential is not acceptable."
    INCONSISTENT_VOTER_SET = 94, False, "Sender and receiver do not agree on who votes."
    INVALID_UPDATE_VERSION = 95, False, "The version of the update is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal of a forwarded request cannot be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This broker does not have a topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "Another broker with this id is alive."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The log belongs to a topic with another id."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "A replica in the proposed ISR may not be in it."
    NEW_LEADER_ELECTED = 108, False, "The change was made, and it changed the leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is only in tiered storage by now."
    FENCED_MEMBER_EPOCH = 110, False, "The member was fenced; it must give up its partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still holds this group.instance.id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support the assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member epoch is old; retry after the next heartbeat."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "Brokers and controllers answer this on different endpoints."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The endpoint type is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no such controller."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is unknown or outdated."
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, False, "The controller rejects the broker's registration."
    TRANSACTION_ABORTABLE = 120, False, "The transaction failed; abort it to go on."
    INVALID_RECORD_STATE = 121, False, "The record cannot be acknowledged in its present state."
    SHARE_SESSION_NOT_FOUND = 122, True, "There is no such share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session's epoch does not match."
    FENCED_STATE_EPOCH = 124, False, "The state epoch is not the current one."
    INVALID_VOTER_KEY = 125, False, "The voter key is another replica's."
    DUPLICATE_VOTER = 126, False, "The replica votes already."
    VOTER_NOT_FOUND = 127, False, "The replica is not a voter."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client's metadata is too old; it must bootstrap again."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The topology epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The topology epoch is outdated."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker has no room for another share session."
    GROUP_DELETION_FAILED = 134, False, "The group could not be deleted."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, False, "The topology description was not taken over."
    CONTROLLER_ID_NOT_REGISTERED = 136, False, "No controller with this id is registered."


class TidemillError(Exception):
    """The root of all errors that are not bugs."""


class ClientError(TidemillError):
    """The root of what the SDK raises."""

    def __init__(self, message: str, *, code: str | None = None, is_retriable: bool = False) -> None:
        super().__init__(message)
        # The name of Kafka's error, such as "TOPIC_ALREADY_EXISTS".
        self.code = code
        self.is_retriable = is_retriable


class ProtocolError(TidemillError):
    """Bytes from a peer that do not parse. The connection is closed."""


# The text may contain input of the client, which could exceed the limit of a protocol string.
_MESSAGE_CHARACTERS_MAX = 1000


class ApiError(TidemillError):
    """An expected outcome, returned to the client as an error code and, where the API has a field for it, a text."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = code.message if message is None else _shortened(message)
        super().__init__(f"{code.name}: {self.message}")


def _shortened(message: str) -> str:
    if len(message) <= _MESSAGE_CHARACTERS_MAX:
        return message
    return message[:_MESSAGE_CHARACTERS_MAX] + "…"


class ConfigError(TidemillError):
    """A setting that is not allowed. The text names the key, the value and the allowed values."""


class StorageError(TidemillError):
    """The disk failed, or its content is damaged."""
