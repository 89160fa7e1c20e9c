"""The commands of transaction transcripts, and how answers, records and markers read in them.

A client keeps its transactional id and the producer id and epoch that it got last, unless a command sets them:
`end c commit producer=1000:3`. Producers read `1000:3`: the id and the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.scenarios.groups_script import duration_ms
from tests.scenarios.transactions_world import Asked, World
from tests.scenarios.transcripts import Command
from tidemill.config import TransactionsConfig
from tidemill.coordinator.transactions.machine import MarkersWritten, WriteMarkers
from tidemill.coordinator.transactions.records import TransactionRecord, decode
from tidemill.coordinator.transactions.transaction import TransactionState
from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
)
from tidemill.types import ProducerEpoch


class Client:
    def __init__(self) -> None:
        self.transactional_id = ""
        self.producer_id = -1
        self.producer_epoch = -1


class Script:
    """Executes commands on a world and prints everything that each one causes."""

    def __init__(self) -> None:
        self.world = World()
        self.clients: dict[str, Client] = {}
        self._records_shown = 0

    def execute(self, command: Command) -> list[str]:
        method: Callable[[Command], list[str] | None] = getattr(self, "do_" + command.name.replace("-", "_"))
        return [*(method(command) or []), *self._news()]

    def _news(self) -> list[str]:
        lines = ["wrote: " + show_record(*raw) for raw in self.world.log.records[self._records_shown :]]
        self._records_shown = len(self.world.log.records)
        for asked, response in self.world.take_answers():
            self._remember(asked, response)
            lines += [f"{asked.client} {_verb(asked)}: {line}" for line in _ANSWERS[_verb(asked)](response)]
        lines += ["markers: " + show_markers(effect) for effect in self.world.reported]
        self.world.reported.clear()
        return lines

    def _remember(self, asked: Asked, response: Any) -> None:
        if isinstance(response, InitProducerIdResponse | EndTxnResponse) and response.producer_id >= 0:
            client = self.clients[asked.client]
            client.producer_id = response.producer_id
            client.producer_epoch = response.producer_epoch

    def _client(self, command: Command) -> Client:
        client = self.clients.setdefault(command.words[0], Client())
        client.transactional_id = command.options.get("id", client.transactional_id)
        if "producer" in command.options:
            producer_id, _, epoch = command.options["producer"].partition(":")
            client.producer_id, client.producer_epoch = int(producer_id), int(epoch)
        return client

    def _ask(self, command: Command, request: Any) -> list[str]:
        version = command.options.get("v")
        token = self.world.ask(command.words[0], request, None if version is None else int(version))
        asked = self.world.asked.get(token)
        return [] if asked is None else [f"{asked.client} {_verb(asked)}: waits"]

    # The world.

    def do_config(self, command: Command) -> None:
        values: dict[str, Any] = {
            name.replace(".", "_"): text == "true" if text in ("true", "false") else int(text)
            for name, text in command.options.items()
        }
        assert not self.clients, "config comes first"
        version = values.pop("transaction_version", 2)
        self.world = World(config=TransactionsConfig(**values), transaction_version=version)

    def do_advance(self, command: Command) -> None:
        self.world.advance(duration_ms(command.words[0]))

    def do_append(self, command: Command) -> None:
        text = command.options["error"]
        self.world.log.refuse_with = None if text == "none" else ErrorCode[text]

    def do_commits(self, command: Command) -> None:
        if command.words[0] == "hold":
            self.world.holds_commits = True
        else:
            self.world.release_commits()

    def do_move(self, command: Command) -> None:
        """`lose=yes`: to a broker that has only what is committed."""
        self.world.move_coordinator(loses_uncommitted=command.options.get("lose") == "yes")
        self._records_shown = min(self._records_shown, len(self.world.log.records))

    def do_producer_ids(self, command: Command) -> None:
        self.world.producer_ids_left = None if command.words[0] == "unlimited" else int(command.words[0])

    def do_written(self, command: Command) -> None:
        """`written tx`, or of other markers than those asked for: `written tx producer=1000:3`."""
        transactional_id = command.words[0]
        if "producer" in command.options:
            producer_id, epoch = map(int, command.options["producer"].split(":"))
            self.world.markers_written(MarkersWritten(transactional_id, producer_id, ProducerEpoch(epoch)))
        else:
            self.world.markers_written(self.world.markers[transactional_id].written)

    def do_at_epoch(self, command: Command) -> None:
        """Many bumps later, and on another coordinator."""
        transactional_id, epoch = command.words
        transaction = replace(
            self.world.machine.transactions[transactional_id], producer_epoch=ProducerEpoch(int(epoch))
        )
        self.world.write(TransactionRecord(transactional_id, transaction))

    def do_state(self, command: Command) -> list[str]:
        transaction = self.world.machine.transactions.get(command.words[0])
        if transaction is None:
            return ["no such transactional id"]
        return [f"{transaction.state.label} {transaction.producer_id}:{transaction.producer_epoch}"]

    # Requests.

    def do_init(self, command: Command) -> list[str]:
        """`go-on=yes` names the client's producer (KIP-360). Otherwise the client starts as a new producer."""
        client = self._client(command)
        goes_on = command.options.get("go-on") == "yes" or "producer" in command.options
        request = InitProducerIdRequest(
            transactional_id=client.transactional_id,
            transaction_timeout_ms=duration_ms(command.options.get("timeout", "60s")),
            producer_id=client.producer_id if goes_on else -1,
            producer_epoch=client.producer_epoch if goes_on else -1,
            enable2_pc=command.options.get("two-phase") == "yes",
            keep_prepared_txn=command.options.get("keep-prepared") == "yes",
        )
        command.options.setdefault("v", "5")
        return self._ask(command, request)

    def do_add(self, command: Command) -> list[str]:
        return self._add(command, verify_only=False)

    def do_verify(self, command: Command) -> list[str]:
        return self._add(command, verify_only=True)

    def _add(self, command: Command, *, verify_only: bool) -> list[str]:
        client = self._client(command)
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for word in command.words[1:]:
            name, _, index = word.rpartition("-")
            topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(int(index))
        if int(command.options.setdefault("v", "5")) < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=client.transactional_id,
                v3_and_below_producer_id=client.producer_id,
                v3_and_below_producer_epoch=client.producer_epoch,
                v3_and_below_topics=list(topics.values()),
            )
        else:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=client.transactional_id,
                producer_id=client.producer_id,
                producer_epoch=client.producer_epoch,
                verify_only=verify_only,
                topics=list(topics.values()),
            )
            request = AddPartitionsToTxnRequest(transactions=[transaction])
        return self._ask(command, request)

    def do_add_offsets(self, command: Command) -> list[str]:
        client = self._client(command)
        request = AddOffsetsToTxnRequest(
            transactional_id=client.transactional_id,
            producer_id=client.producer_id,
            producer_epoch=client.producer_epoch,
            group_id=command.options.get("group", "g"),
        )
        return self._ask(command, request)

    def do_end(self, command: Command) -> list[str]:
        client = self._client(command)
        request = EndTxnRequest(
            transactional_id=client.transactional_id,
            producer_id=client.producer_id,
            producer_epoch=client.producer_epoch,
            committed={"commit": True, "abort": False}[command.words[1]],
        )
        return self._ask(command, request)

    def do_describe(self, command: Command) -> list[str]:
        return self._ask(
            command, DescribeTransactionsRequest(transactional_ids=command.options["ids"].split(","))
        )

    def do_list(self, command: Command) -> list[str]:
        states = [state for state in command.options.get("states", "").split(",") if state]
        producer_ids = [int(each) for each in command.options.get("producers", "").split(",") if each]
        request = ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=producer_ids,
            duration_filter=duration_ms(command.options.get("longer-than", "-1")),
            transactional_id_pattern=command.options.get("pattern"),
        )
        return self._ask(command, request)


def _verb(asked: Asked) -> str:
    if isinstance(asked.request, AddPartitionsToTxnRequest):
        return "verify" if any(each.verify_only for each in asked.request.transactions) else "add"
    return {
        InitProducerIdRequest: "init",
        AddOffsetsToTxnRequest: "add-offsets",
        EndTxnRequest: "end",
        DescribeTransactionsRequest: "describe",
        ListTransactionsRequest: "list",
    }[type(asked.request)]


def _error(code: int) -> str:
    return "ok" if code == 0 else ErrorCode(code).name


def _show_producer(response: Any) -> list[str]:
    text = _error(response.error_code)
    if response.producer_id >= 0:
        text += f", producer {response.producer_id}:{response.producer_epoch}"
    if getattr(response, "ongoing_txn_producer_id", -1) >= 0:
        text += f" ends what {response.ongoing_txn_producer_id}:{response.ongoing_txn_producer_epoch} wrote"
    return [text]


def _show_added(response: Any) -> list[str]:
    topics = response.results_by_topic_v3_and_below or [
        topic for each in response.results_by_transaction for topic in each.topic_results
    ]
    return [
        f"{topic.name}-{each.partition_index} {_error(each.partition_error_code)}"
        for topic in topics
        for each in topic.results_by_partition
    ] or ["no partitions"]


def _show_plain(response: Any) -> list[str]:
    return [_error(response.error_code)]


def _show_described(response: Any) -> list[str]:
    lines = []
    for each in response.transaction_states:
        if each.error_code:
            lines.append(f"{each.transactional_id or '(empty)'} {_error(each.error_code)}")
            continue
        partitions = [f"{topic.topic}-{index}" for topic in each.topics for index in topic.partitions]
        lines.append(
            f"{each.transactional_id} {each.transaction_state} {each.producer_id}:{each.producer_epoch}, "
            f"timeout {each.transaction_timeout_ms} ms, start {each.transaction_start_time_ms} ms, "
            f"{' '.join(partitions) or 'no partitions'}"
        )
    return lines


def _show_listed(response: Any) -> list[str]:
    lines = [f"unknown state {label}" for label in response.unknown_state_filters]
    if response.error_code:
        lines.append(_error(response.error_code))
    lines += [
        f"{each.transactional_id} {each.transaction_state} of {each.producer_id}"
        for each in response.transaction_states
    ]
    return lines or ["nothing"]


_ANSWERS: dict[str, Callable[[Any], list[str]]] = {
    "init": _show_producer,
    "add": _show_added,
    "verify": _show_added,
    "add-offsets": _show_plain,
    "end": _show_producer,
    "describe": _show_described,
    "list": _show_listed,
}


def show_record(key: bytes, value: bytes | None) -> str:
    record = decode(key, value)
    assert record is not None
    transaction = record.transaction
    if transaction is None:
        return f"{record.transactional_id} deleted"
    text = f"{record.transactional_id} {transaction.state.label} "
    text += f"{transaction.producer_id}:{transaction.producer_epoch}"
    if transaction.state is TransactionState.EMPTY:
        text += f", timeout {transaction.timeout_ms} ms"
    if transaction.next_producer_id >= 0:
        text += f", then {transaction.next_producer_id}:{max(0, transaction.next_producer_epoch)}"
    return " ".join([text, *map(str, transaction.partitions)])


def show_markers(effect: WriteMarkers) -> str:
    end = effect.end
    result = "COMMIT" if end.is_commit else "ABORT"
    partitions = " ".join(map(str, effect.partitions)) or "no partition"
    text = f"{effect.transactional_id} {result} of {end.producer_id}:{end.producer_epoch} to {partitions}"
    return f"{text}, coordinator epoch {end.coordinator_epoch}, version {end.transaction_version}"
