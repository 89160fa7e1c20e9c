"""Delayed records through a broker in this process, whose clock the test moves: when they come, and that they come once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tidemill.broker.partitions import delivery
from tidemill.client.admin.delays import DelayAdmin, NotPending, _Waiting
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.delays.state import PartitionDelays
from tidemill.errors import ApiError, TidemillError
from tidemill.log.delay_snapshots import DelaySnapshots
from tidemill.protocol.records import Header
from tidemill.protocol.steps import Steps
from tidemill.testing import InProcessBroker, InProcessCluster, StoredRecord
from tidemill.types import TopicPartition

DELAYS = {"tidemill.delays.enable": "true"}
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def shared() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def topic(shared: InProcessBroker) -> str:
    return shared.create_topic(f"later-{next(_NUMBERS)}", configs=DELAYS)


def shown(broker: InProcessBroker, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in broker.records(topic)]


def start_offset(broker: InProcessBroker, topic: str) -> int:
    with Cluster(broker.bootstrap) as cluster:
        (offset,) = Admin(cluster).start_offsets([TopicPartition(topic, 0)]).values()
    return offset


def headers(record: StoredRecord) -> dict[str, bytes | None]:
    return dict(record.headers)


def test_a_record_is_hidden_until_it_is_due(shared: InProcessBroker, topic: str) -> None:
    shared.produce(topic, "now")
    delayed = shared.produce(topic, "later", key="k", headers={"tidemill-delay": "1h", "trace": "7"})
    assert shown(shared, topic) == ["now"]
    shared.clock.advance(minutes=59)
    assert shown(shared, topic) == ["now"]
    shared.clock.advance(minutes=2)
    copy = shared.records(topic, count=2)[1]
    assert (copy.value, copy.key, copy.offset) == (b"later", b"k", 2)
    assert headers(copy)["tidemill-original-offset"] == b"%d" % delayed.offset
    assert headers(copy)["trace"] == b"7"
    assert "tidemill-delay" not in headers(copy)
    shared.clock.advance(hours=2)
    assert shown(shared, topic) == ["now", "later"]


def test_records_come_in_the_order_of_their_times(shared: InProcessBroker, topic: str) -> None:
    for minutes in (30, 10, 20):
        shared.produce(topic, f"{minutes}", headers={"tidemill-delay": f"{minutes}m"})
    shared.clock.advance(hours=1)
    assert [record.value for record in shared.records(topic, count=3)] == [b"10", b"20", b"30"]


def test_a_time_in_the_past_is_due_at_once(shared: InProcessBroker, topic: str) -> None:
    shared.produce(topic, "late", headers={"tidemill-deliver-at": "2001-01-01T00:00:00Z"})
    assert [record.value for record in shared.records(topic, count=1)] == [b"late"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tidemill-delay", "soon"),
        ("tidemill-delay", "-5s"),
        ("tidemill-delay", "109500d"),
        ("tidemill-deliver-at", "tomorrow"),
        ("tidemill-deliver-at", "2001-01-01T00:00:00"),
        ("tidemill-schedule", "0 0 31 2 *"),
        ("tidemill-schedule", "* * *"),
        ("tidemill-cancel", ""),
        ("tidemill-original-offset", "5"),
    ],
)
def test_headers_that_make_no_sense_are_refused(
    shared: InProcessBroker, topic: str, name: str, value: str
) -> None:
    with pytest.raises(TidemillError, match=r"INVALID_RECORD|rejected"):
        shared.produce(topic, "no", key="k", headers={name: value})
    assert shown(shared, topic) == []


def test_a_cancelled_record_never_comes(shared: InProcessBroker, topic: str) -> None:
    shared.produce(topic, "no", key="k", headers={"tidemill-delay": "1h", "tidemill-schedule-id": "a"})
    shared.produce(topic, "yes", key="k", headers={"tidemill-delay": "1h", "tidemill-schedule-id": "b"})
    shared.produce(topic, None, key="k", headers={"tidemill-cancel": "", "tidemill-schedule-id": "a"})
    shared.clock.advance(hours=2)
    assert [record.value for record in shared.records(topic, count=1)] == [b"yes"]


def test_a_cancel_of_what_was_delivered_does_nothing(shared: InProcessBroker, topic: str) -> None:
    shared.produce(topic, "came", key="k", headers={"tidemill-delay": "1h", "tidemill-schedule-id": "a"})
    shared.clock.advance(hours=2)
    shared.records(topic, count=1)
    shared.produce(topic, None, key="k", headers={"tidemill-cancel": "", "tidemill-schedule-id": "a"})
    shared.clock.advance(hours=2)
    assert shown(shared, topic) == ["came"]


def test_a_later_record_of_the_same_id_takes_its_place(shared: InProcessBroker, topic: str) -> None:
    for text, delay in (("first", "1h"), ("second", "3h")):
        named = {"tidemill-delay": delay, "tidemill-schedule-id": "a"}
        shared.produce(topic, text, key="k", headers=named)
    shared.clock.advance(hours=2)
    assert shown(shared, topic) == []
    shared.clock.advance(hours=2)
    assert [record.value for record in shared.records(topic, count=1)] == [b"second"]


def test_a_schedule_comes_each_time_until_it_is_cancelled(shared: InProcessBroker, topic: str) -> None:
    schedule = {"tidemill-schedule": "0 * * * *", "tidemill-schedule-id": "hourly"}
    shared.produce(topic, "tick", key="k", headers=schedule)
    for _ in range(3):
        shared.clock.advance(hours=1)
    assert len(shared.records(topic, count=3)) == 3
    shared.produce(topic, None, key="k", headers={"tidemill-cancel": "", "tidemill-schedule-id": "hourly"})
    shared.clock.advance(hours=3)
    assert len(shown(shared, topic)) == 3


@pytest.mark.parametrize("way", ["crash", "stop"])
def test_delays_survive_a_restart_and_come_once(way: str) -> None:
    with InProcessBroker() as broker:
        topic = broker.create_topic("later", configs=DELAYS)
        broker.produce(topic, "early", headers={"tidemill-delay": "1h"})
        broker.produce(topic, "late", headers={"tidemill-delay": "3h"})
        broker.clock.advance(hours=2)
        assert len(broker.records(topic, count=1)) == 1
        broker.crash() if way == "crash" else broker.stop()
        broker.start()
        assert shown(broker, topic) == ["early"]
        broker.clock.advance(hours=2)
        assert [record.value for record in broker.records(topic, count=2)] == [b"early", b"late"]
        broker.clock.advance(hours=2)
        assert shown(broker, topic) == ["early", "late"]


@pytest.mark.parametrize("way", ["crash", "stop"])
def test_a_start_reads_the_snapshot_and_replays_the_rest(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_SNAPSHOT_EVERY_BYTES", 1)
    monkeypatch.setattr(delivery, "_LAST_SNAPSHOT_BYTES", 1)
    restored: list[int | None] = []
    restore = DelaySnapshots.restore

    def watched(self: DelaySnapshots, *arguments: Any) -> Steps[PartitionDelays | None]:
        found = yield from restore(self, *arguments)
        restored.append(None if found is None else len(found.pending.offsets))
        return found

    monkeypatch.setattr(DelaySnapshots, "restore", watched)
    with InProcessBroker() as broker:
        topic = broker.create_topic("later", configs=DELAYS)
        for number in range(5):
            broker.produce(topic, f"{number}", headers={"tidemill-delay": f"{number + 1}h"})
        broker.clock.advance(hours=2)
        assert len(broker.records(topic, count=2)) == 2
        broker.crash() if way == "crash" else broker.stop()
        broker.start()
        assert shown(broker, topic) == ["0", "1"]
        broker.clock.advance(hours=8)
        assert [record.value for record in broker.records(topic, count=5)] == [b"0", b"1", b"2", b"3", b"4"]
        broker.clock.advance(hours=8)
        assert len(broker.records(topic)) == 5
    assert restored[0] is None
    assert restored[1] is not None
    if way == "stop":
        assert restored[1] == 3, "the state at the end of the stop"


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_delayed_record_of_a_transaction_comes_only_when_that_commits(
    shared: InProcessBroker, topic: str, is_committed: bool
) -> None:
    producer = Producer(
        {"bootstrap.servers": shared.bootstrap, "transactional.id": topic, "transaction.timeout.ms": 900_000}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"of a transaction", headers={"tidemill-delay": "1s"})
    producer.flush(20)
    shared.clock.advance(minutes=5)
    assert shared.records(topic, isolation="read_uncommitted") == []
    if is_committed:
        producer.commit_transaction(20)
        assert [record.value for record in shared.records(topic, count=1)] == [b"of a transaction"]
    else:
        producer.abort_transaction(20)
        shared.clock.advance(minutes=5)
        assert shown(shared, topic) == []


def test_a_view_shows_what_has_come(shared: InProcessBroker, topic: str) -> None:
    view = shared.create_topic(
        f"{topic}-view",
        partitions=-1,
        configs={"tidemill.view.source": topic, "tidemill.view.filter": "region = 'eu'"},
    )
    for region in ("eu", "us"):
        shared.produce(topic, f"{region} now", headers={"region": region})
        shared.produce(topic, f"{region} later", headers={"region": region, "tidemill-delay": "1h"})
    assert shown(shared, view) == ["eu now"]
    shared.clock.advance(hours=2)
    assert [record.value for record in shared.records(view, count=2)] == [b"eu now", b"eu later"]


def test_failure_23_retention_carries_what_waits() -> None:
    with InProcessBroker() as broker:
        configs = {**DELAYS, "retention.ms": "3600000", "segment.bytes": "1048576"}
        topic = broker.create_topic("later", configs=configs)
        broker.produce(topic, "waits", key="k", headers={"tidemill-delay": "100h"})
        for _ in range(4):
            broker.produce(topic, b"x" * 600_000)
        broker.clock.advance(hours=5)
        for _ in range(3):
            broker.run_retention()
            broker.clock.advance(seconds=2)
        assert start_offset(broker, topic) > 0, "the first segment is gone"
        assert all(record.value != b"waits" for record in broker.records(topic))
        broker.crash()
        broker.start()
        broker.clock.advance(hours=95, minutes=30)
        (come,) = [record for record in broker.records(topic, count=1) if record.value == b"waits"]
        assert headers(come)["tidemill-original-offset"] == b"0"


def test_delays_and_compaction_exclude_each_other(shared: InProcessBroker, topic: str) -> None:
    with pytest.raises(ApiError, match=r"tidemill\.delays\.enable"):
        shared.create_topic("both", configs={**DELAYS, "cleanup.policy": "compact"})


def test_a_topic_without_delays_shows_the_headers_as_they_are(shared: InProcessBroker) -> None:
    topic = shared.create_topic(f"plain-{next(_NUMBERS)}")
    shared.produce(topic, "now", headers={"tidemill-delay": "1h"})
    assert shown(shared, topic) == ["now"]


@pytest.mark.parametrize("value", ["true", "false"])
def test_delays_are_a_matter_of_the_creation(shared: InProcessBroker, value: str) -> None:
    before = "false" if value == "true" else "true"
    topic = shared.create_topic(f"fixed-{next(_NUMBERS)}", configs={"tidemill.delays.enable": before})
    with Cluster(shared.bootstrap) as cluster, pytest.raises(ApiError, match="when a topic is created"):
        Admin(cluster).alter_configs(ResourceType.TOPIC, topic, changes={"tidemill.delays.enable": value})


@pytest.mark.parametrize("count", [1, 500])
def test_what_is_due_is_there_when_advance_returns(shared: InProcessBroker, topic: str, count: int) -> None:
    for number in range(count):
        shared.produce(topic, f"{number}", headers={"tidemill-delay": "1h"})
    assert len(shared.waiting(topic)) == count
    shared.clock.advance(minutes=59)
    assert shown(shared, topic) == []
    shared.clock.advance(minutes=1)
    assert len(shown(shared, topic)) == count
    assert shared.waiting(topic) == []


def test_what_is_due_in_a_cluster_is_there_when_advance_returns() -> None:
    with InProcessCluster(3) as cluster:
        topic = cluster.create_topic("later", 3, configs=DELAYS)
        for partition in range(3):
            cluster.produce(topic, f"{partition}", headers={"tidemill-delay": "2d"}, partition=partition)
        cluster.clock.advance(days=1)
        assert cluster.records(topic) == []
        cluster.clock.advance(days=1)
        assert [record.value for record in cluster.records(topic)] == [b"0", b"1", b"2"]


class Interrupted(DelayAdmin):
    """Something happens between the look at a record and the append."""

    def __init__(self, cluster: Cluster, happen: Callable[[], object]) -> None:
        super().__init__(cluster)
        self._happen = happen

    def _waiting_record(self, topic: str, partition: int, offset: int) -> _Waiting:
        waiting = super()._waiting_record(topic, partition, offset)
        self._happen()
        return waiting


def test_a_record_that_is_delivered_while_it_gets_another_time_comes_once(
    shared: InProcessBroker, topic: str
) -> None:
    shared.produce(topic, "once", headers={"tidemill-delay": "1h"})
    with Cluster(shared.bootstrap) as cluster:
        late = Interrupted(cluster, lambda: shared.clock.advance(hours=2))
        with pytest.raises(NotPending, match="delivered meanwhile"):
            late.reschedule(topic, 0, 0, [Header("tidemill-delay", b"3h")])
    assert shared.waiting(topic) == []
    shared.clock.advance(hours=4)
    assert shown(shared, topic) == ["once"]


def test_cancel_of_a_record_that_is_delivered_meanwhile_fails(shared: InProcessBroker, topic: str) -> None:
    shared.produce(topic, "once", headers={"tidemill-delay": "1h"})
    with Cluster(shared.bootstrap) as cluster, pytest.raises(NotPending, match="delivered meanwhile"):
        Interrupted(cluster, lambda: shared.clock.advance(hours=2)).cancel(topic, 0, 0)
    assert shown(shared, topic) == ["once"]


@pytest.mark.parametrize("moved", [False, True], ids=["cancelled", "rescheduled"])
def test_record_that_retention_carries_meanwhile_does_not_come_at_its_old_time(moved: bool) -> None:
    with InProcessBroker() as broker:
        topic = broker.create_topic("later", configs={**DELAYS, "retention.ms": "3600000"})
        broker.produce(topic, "waits", headers={"tidemill-delay": "10h"})

        def carry() -> None:
            broker.clock.advance(hours=2)
            broker.run_retention()
            broker.clock.advance(seconds=2)
            (waits,) = broker.waiting(topic)
            assert waits.offset > 0, "it was carried"

        with Cluster(broker.bootstrap) as cluster:
            interrupted = Interrupted(cluster, carry)
            if moved:
                interrupted.reschedule(topic, 0, 0, [Header("tidemill-delay", b"20h")])
            else:
                interrupted.cancel(topic, 0, 0)
        assert len(broker.waiting(topic)) == moved
        broker.clock.advance(hours=9)
        assert shown(broker, topic) == []
        broker.clock.advance(hours=12)
        assert shown(broker, topic) == ["waits"] * moved


def test_a_recurring_message_that_has_fired_can_be_rescheduled(shared: InProcessBroker, topic: str) -> None:
    shared.produce(
        topic, "report", key="k", headers={"tidemill-schedule": "@every 1h", "tidemill-schedule-id": "s"}
    )
    shared.clock.advance(minutes=61)
    assert len(shared.records(topic, count=1)) == 1
    with Cluster(shared.bootstrap) as cluster:
        moved_to = DelayAdmin(cluster).reschedule(topic, 0, 0, [Header("tidemill-schedule", b"@every 2h")])
    assert [(each.offset, each.schedule) for each in shared.waiting(topic)] == [(moved_to, "@every 2h")]
    shared.clock.advance(minutes=61)
    assert len(shared.records(topic)) == 1
    shared.clock.advance(minutes=61)
    assert len(shared.records(topic, count=2)) == 2


@pytest.mark.parametrize("value", ["v", "v" * 40_000], ids=["small", "large"])
def test_the_listing_says_when_a_schedule_fires_next_by_the_log(
    shared: InProcessBroker, topic: str, value: str
) -> None:
    named = {"tidemill-schedule": "@every 1h", "tidemill-schedule-id": "s", "trace": "7"}
    shared.produce(topic, value, key="k", headers=named)
    shared.produce(topic, "once", headers={"tidemill-delay": "5h"})
    shared.clock.advance(minutes=61)
    (copy,) = shared.records(topic, count=1)
    waits = {each.offset: each for each in shared.waiting(topic)}
    assert waits[0].due_ms == int(headers(copy)["tidemill-next-due"] or b"")
    assert (waits[0].value, waits[0].schedule_id) == (value.encode(), "s")
    assert len(waits) == 2
