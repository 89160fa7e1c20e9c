"""One transactional id: the requests of a client to its coordinator.

Two manners, by what the cluster has agreed on (its finalized feature `transaction.version`). *New* (version 2, KIP-890):
writing adds a partition to the transaction, and each end brings a new epoch. *Old*: the client adds partitions and groups
first and keeps its epoch, so after an abort, when something may still be under way, it asks for another one (KIP-360).

A producer is known by its id and epoch (`Identity`). `init` makes a new one, which fences all before it, and aborts what
they left open. `take_over` makes a new one as well, but leaves what is open as it is, for the new one to end (KIP-939).

    Fenced               a newer producer has the transactional id, or the coordinator gave up on this one: nothing is
                         possible any more. Never answered with another `init`: two would fence each other for ever.
    TransactionFailed    this transaction cannot be committed; an abort is possible
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple, TypeVar

from tidemill import __version__
from tidemill.client.cluster import Cluster, check, known_code
from tidemill.errors import ApiError, ConfigError, ErrorCode, TidemillError
from tidemill.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from tidemill.protocol.api.data import ProduceRequest
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidemill.protocol.schema import Request, Response
from tidemill.types import TopicPartition

ResponseT = TypeVar("ResponseT", bound=Response)

TRANSACTION_TIMEOUT_MS = 60_000
# Version 6 is not final in Kafka; what needs it asks for it.
INIT_PRODUCER_ID_VERSION = 5
_TAKE_OVER_VERSION = 6
_FEATURE = "transaction.version"
_NEW_MANNER = 2
# The first with finalized features.
_API_VERSIONS_VERSION = 3
# The first version in which writing adds to the transaction.
_NEW_PRODUCE = 12
# The last versions of the old manner.
_OLD_ADD_PARTITIONS = 3
_OLD_ADD_OFFSETS = 3
_OLD_END = 4
_FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
_FAILED = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)


class Fenced(TidemillError):
    """Under this epoch nothing is possible any more."""


class TransactionFailed(TidemillError):
    """The transaction cannot be committed."""


class Identity(NamedTuple):
    producer_id: int
    producer_epoch: int


NO_IDENTITY = Identity(-1, -1)


class TakenOver(NamedTuple):
    """`writer` is whose records the open transaction consists of; None when none is open."""

    producer: Identity
    writer: Identity | None


class TransactionCoordinator:
    def __init__(
        self, cluster: Cluster, transactional_id: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms

    @cached_property
    def is_new(self) -> bool:
        """Whether the cluster has the new manner."""
        return self._cluster.retrying(self._has_agreed_on_the_new_manner)

    def init(self, known: Identity = NO_IDENTITY) -> Identity:
        """Returns the only producer of the id; `known` is the one before, after an error (KIP-360)."""
        answer = self._init(self._init_request(known), INIT_PRODUCER_ID_VERSION)
        return Identity(answer.producer_id, answer.producer_epoch)

    def take_over(self, *, two_phase: bool = False) -> TakenOver:
        """Fences earlier producers and keeps the ongoing transaction (KIP-939).

        With `two_phase` that transaction has no timeout.

        UNSUPPORTED_VERSION when the cluster cannot; TRANSACTIONAL_ID_AUTHORIZATION_FAILED when it does not allow two-phase
        commit.
        """
        message = self._init_request(NO_IDENTITY)
        message.keep_prepared_txn, message.enable2_pc = True, two_phase
        answer = self._init(message, _TAKE_OVER_VERSION)
        writer = Identity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
        return TakenOver(
            Identity(answer.producer_id, answer.producer_epoch), None if writer == NO_IDENTITY else writer
        )

    def add_partitions(self, producer: Identity, partitions: Iterable[TopicPartition]) -> None:
        """Sends AddPartitionsToTxn. Needed before the first write to a partition when transaction.version is below 2."""
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for name, index in partitions:
            topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(index)
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=list(topics.values()),
        )

        def attempt() -> None:
            response = self._ask(message, AddPartitionsToTxnResponse, _OLD_ADD_PARTITIONS)
            for topic in response.results_by_topic_v3_and_below:
                for answer in topic.results_by_partition:
                    self.check(answer.partition_error_code, f"{topic.name}-{answer.partition_index}")

        self._cluster.retrying(attempt)

    def add_group(self, producer: Identity, group_id: str) -> None:
        """Sends AddOffsetsToTxn. Needed before the group's offsets are written when transaction.version is below 2."""
        message = AddOffsetsToTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=group_id,
        )

        def attempt() -> None:
            answer = self._ask(message, AddOffsetsToTxnResponse, _OLD_ADD_OFFSETS)
            self.check(answer.error_code, f"the offsets of group {group_id}")

        self._cluster.retrying(attempt)

    def end(self, producer: Identity, *, is_commit: bool) -> Identity:
        """The producer id and epoch of the next transaction."""
        message = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=is_commit,
        )

        def attempt() -> EndTxnResponse:
            answer = self._ask(message, EndTxnResponse, _OLD_END)
            self.check(answer.error_code, "the end of the transaction")
            return answer

        answer = self._cluster.retrying(attempt)
        if self.is_new and answer.producer_id >= 0:
            return Identity(answer.producer_id, answer.producer_epoch)
        return producer

    # --- how it is asked ---

    def _has_agreed_on_the_new_manner(self) -> bool:
        connection = self._cluster.any_broker()
        hello = ApiVersionsRequest(client_software_name="tidemill", client_software_version=__version__)
        response = connection.request(hello, ApiVersionsResponse, max_version=_API_VERSIONS_VERSION)
        check(response.error_code)
        levels = {each.name: each.max_version_level for each in response.finalized_features}
        offers = connection.version_of(ProduceRequest) >= _NEW_PRODUCE
        return levels.get(_FEATURE, 0) >= _NEW_MANNER and offers

    def _init_request(self, known: Identity) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
        )

    def _init(self, message: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        def attempt() -> InitProducerIdResponse:
            connection = self._cluster.transaction_coordinator(self._transactional_id)
            if message.keep_prepared_txn and connection.version_of(InitProducerIdRequest) < version:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "the cluster has no two-phase commit (KIP-939)")
            response = connection.request(message, InitProducerIdResponse, max_version=version)
            self.check(response.error_code, f"the transactional id {self._transactional_id}")
            return response

        return self._cluster.retrying(attempt)

    def _ask(self, message: Request, response_type: type[ResponseT], old_version: int) -> ResponseT:
        connection = self._cluster.transaction_coordinator(self._transactional_id)
        return connection.request(message, response_type, max_version=None if self.is_new else old_version)

    # --- what answers mean ---

    def check(self, error_code: int, subject: str) -> None:
        if error_code:
            code = known_code(error_code)
            raise self.meaning_of(ApiError(code, f"{subject}: {code.message}"))

    def meaning_of(self, failure: TidemillError) -> TidemillError:
        if isinstance(failure, ApiError):
            if failure.code in _FENCED:
                return Fenced(
                    f"the producer {self._transactional_id} was fenced: a newer one uses its transactional id, or its "
                    f"transaction took longer than {self._timeout_ms} ms ({failure})"
                )
            if failure.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                return ConfigError(
                    f"transaction.timeout.ms={self._timeout_ms} is longer than the brokers'"
                    " transaction.max.timeout.ms: lower the one or raise the other"
                )
            if failure.code in _FAILED:
                return TransactionFailed(f"the transaction of {self._transactional_id} failed: {failure}")
        return failure
