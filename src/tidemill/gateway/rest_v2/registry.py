"""`Instances`: the consumer instances of this gateway by group and name, how many there may be, and when they end.

An instance ends when it is deleted, when it got no request for `instance_idle_s`, or with the gateway. It
leaves its group in each case, so that its partitions go to others at once. A request under way counts as use. A name
is free again as soon as its instance is no longer listed here, though its consumer may still be leaving.

An instance belongs to the access that created it: it reads as that user, and ends with the access. For others it is not
there, and they may have one with the same group and name.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import Message

from tidemill.claims.claim import CLAIM_VALUE, Place
from tidemill.gateway.answers import json_bytes
from tidemill.gateway.cluster.access import Access
from tidemill.gateway.cluster.backend import CLIENT_ID
from tidemill.gateway.cluster.payloads import Payloads
from tidemill.gateway.http.bodies import STRICT_JSON
from tidemill.gateway.http.formats import Kind
from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v2.buffer import partition_of
from tidemill.gateway.rest_v2.instance import Instance
from tidemill.gateway.rest_v2.media import FORMATS
from tidemill.gateway.rest_v2.options import RESETS, InstanceOptions
from tidemill.gateway.settings import Settings

T = TypeVar("T")

# How long the gateway waits for its consumers to leave their groups when it ends.
_LEAVE_S = 5.0
_KEPT = "instances"

_log = logging.getLogger("tidemill.gateway")


@dataclass
class Entry:
    """An instance, with what the registry has to know of it."""

    owner: str
    group: str
    options: InstanceOptions
    instance: Instance
    used_s: float = field(default_factory=time.monotonic)
    requests: int = 0
    # What it reads, as the caller has said it: names, one pattern, or partitions by hand.
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    is_assigned_by_hand: bool = False

    def is_idle(self, limit_s: float) -> bool:
        return self.requests == 0 and time.monotonic() - self.used_s >= limit_s


class Instances:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.limits
        # By owner, group and name.
        self._entries: dict[tuple[str, str, str], Entry] = {}
        self._leaving: set[Instance] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def patience_s(self) -> float:
        """The longest time that the cluster may take."""
        return self._settings.timeout_s

    async def create(self, access: Access, group: str, options: InstanceOptions) -> Entry:
        if self._is_closed:
            raise Problem(503, 50301, "the gateway is stopping")
        place = access.owner, group, options.name
        if place in self._entries:
            raise Problem(409, 40902, f"group {group} has a consumer instance {options.name} already")
        # Those that are leaving still have their threads.
        if len(self._entries) + len(self._leaving) >= self._limits.instances_max:
            raise Problem(
                429,
                429,
                f"the gateway has {self._limits.instances_max} consumer instances and takes no more; delete some",
            )
        instance = Instance(
            _consumer_config(access.backend.settings, group, options),
            encode=lambda message: encode_record(message, FORMATS[options.format], access.backend.payloads),
            commits_itself=options.commits_itself,
        )
        entry = self._entries[place] = Entry(access.owner, group, options, instance)
        if not access.kept(_KEPT):
            access.keep(_KEPT, lambda: True)
            access.closers.append(lambda: self.end_all(access.owner))
        try:
            await self.finished(instance.start())
        except BaseException:
            self._drop(entry)
            instance.close(is_finished=False)
            raise
        # However it ends: an instance without its thread is none.
        asyncio.wrap_future(instance.closed).add_done_callback(lambda _: self._drop(entry))
        return entry

    @contextlib.contextmanager
    def using(self, owner: str, group: str, name: str) -> Iterator[Entry]:
        """For the time of one request."""
        entry = self._entries.get((owner, group, name))
        if entry is None:
            raise Problem(
                404, 40403, f"group {group} has no consumer instance {name} here; it may have expired"
            )
        with self.use_of(entry):
            yield entry

    @contextlib.contextmanager
    def use_of(self, entry: Entry) -> Iterator[None]:
        entry.requests += 1
        try:
            yield
        finally:
            entry.requests -= 1
            entry.used_s = time.monotonic()

    async def delete(self, owner: str, group: str, name: str) -> None:
        """Returns when the consumer has left its group, or goes on leaving after a while."""
        with self.using(owner, group, name) as entry:
            closed = self._end(entry, is_finished=True)
        await asyncio.wait([closed], timeout=self._settings.timeout_s)

    async def expire(self) -> None:
        """Runs as long as the gateway."""
        limit_s = self._limits.instance_idle_s
        while True:
            await asyncio.sleep(min(limit_s / 4, 5.0))
            for entry in [entry for entry in self._entries.values() if entry.is_idle(limit_s)]:
                _log.info(
                    "consumer instance %s of group %s was idle and is deleted",
                    entry.options.name,
                    entry.group,
                )
                self._end(entry, is_finished=False)

    async def end_all(self, owner: str) -> None:
        """Does not wait until they have left their groups."""
        for entry in [entry for entry in self._entries.values() if entry.owner == owner]:
            self._end(entry, is_finished=False)

    async def close(self) -> None:
        self._is_closed = True
        closed = [self._end(entry, is_finished=False) for entry in list(self._entries.values())]
        if closed:
            _, pending = await asyncio.wait(closed, timeout=_LEAVE_S)
            if pending:
                _log.warning("%d consumer instances did not leave their groups in time", len(pending))

    async def finished(self, future: Future[T]) -> T:
        """Returns the result of an instance's thread. Waits no longer than the cluster may take."""
        try:
            async with asyncio.timeout(self.patience_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise Problem(
                503, 50003, "the consumer instance did not get an answer of the cluster in time"
            ) from None

    def _end(self, entry: Entry, *, is_finished: bool) -> asyncio.Future[None]:
        self._drop(entry)
        self._leaving.add(entry.instance)
        closed = asyncio.wrap_future(entry.instance.close(is_finished=is_finished))
        closed.add_done_callback(lambda _: self._leaving.discard(entry.instance))
        return closed

    def _drop(self, entry: Entry) -> None:
        place = entry.owner, entry.group, entry.options.name
        if self._entries.get(place) is entry:
            del self._entries[place]


def _consumer_config(settings: Settings, group: str, options: InstanceOptions) -> dict[str, Any]:
    return {
        **settings.client_config(),
        "client.id": f"{CLIENT_ID}-{options.name}",
        "group.id": group,
        "auto.offset.reset": RESETS[options.offset_reset],
        "enable.auto.commit": False,
        # Longer than a fetch waits: sooner, librdkafka repeats a commit that lost its connection in vain.
        "retry.backoff.ms": 1_000,
        "enable.auto.offset.store": False,
        "isolation.level": options.isolation_level,
        # How soon a member learns of a rebalance.
        "heartbeat.interval.ms": 1000,
        # A topic that comes to be later is found after so long.
        "topic.metadata.refresh.interval.ms": 10_000,
        # What is fetched ahead, for each instance.
        "queued.max.messages.kbytes": 4096,
        # librdkafka pauses a full second, after it has fetched so much, before it fetches more.
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
    }


def encode_record(message: Message, kind: Kind, payloads: Payloads) -> bytes:
    """One element of an answer. A key or value that is not of the kind is a 422, which says which record it is."""
    stored = message.value()
    if stored == CLAIM_VALUE and (headers := message.headers()):
        partition = partition_of(message)
        place = Place(partition.topic, partition.partition, message.offset() or 0)
        stored = payloads.resolved(place, stored, list(headers))  # type: ignore[arg-type]
    key, value = (
        _embedded(message, name, data, kind) for name, data in (("key", message.key()), ("value", stored))
    )
    end = f',"partition":{message.partition()},"offset":{message.offset()}}}'
    return b'{"topic":%b,"key":%b,"value":%b%b' % (json_bytes(message.topic()), key, value, end.encode())


def _embedded(message: Message, name: str, data: bytes | None, kind: Kind) -> bytes:
    if data is None:
        return b"null"
    try:
        match kind:
            case Kind.BINARY:
                return b'"%b"' % base64.b64encode(data)
            case Kind.STRING:
                return json_bytes(data.decode())
        # As it stands in the log, so that no number changes on its way.
        STRICT_JSON.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise Problem(
            422,
            42206,
            f"the {name} of {message.topic()}-{message.partition()} at offset {message.offset()} is not {kind}: {error}; "
            "seek behind it, or read it with an instance of format binary",
        ) from None
    return data
