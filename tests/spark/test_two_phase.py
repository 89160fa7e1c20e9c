"""The driver's side of the sink without a session: what is decided is committed, all else is aborted, whatever dies.

Each runs on a cluster that has KIP-939 and, as far as the promise goes there, on one that has not.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tests.brokers import RunningBroker, eventually, start_broker
from tests.spark.sinks import create, options, read, rows, values, write_batch
from tidemill.client.admin.topics import Admin
from tidemill.client.admin.transactions import TransactionAdmin
from tidemill.client.cluster import Cluster
from tidemill.client.producing.transaction_coordinator import Fenced, TransactionCoordinator
from tidemill.errors import ApiError, ConfigError, ErrorCode, TidemillError
from tidemill.protocol.api.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidemill.spark.sink import two_phase
from tidemill.spark.sink.commits import TOPIC, Commits, Decision, Transaction
from tidemill.spark.sink.options import SinkOptions
from tidemill.spark.sink.two_phase import TransactionLost, commit_batch, settle
from tidemill.spark.sink.writers import BatchWriter, StreamWriter, Task, Written, write_rows
from tidemill.spark.source.offsets import Log, Subscription

SCHEMA = StructType([StructField("value", StringType())])


class DriverDied(Exception):
    pass


@pytest.fixture(params=["kept", "plain"])
def has_two_phase(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """`plain`: the cluster answers as one without KIP-939 does."""
    is_kept: bool = request.param == "kept"
    if not is_kept:

        def unsupported(*_: object, **__: object) -> None:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)

        monkeypatch.setattr(TransactionCoordinator, "take_over", unsupported)
    return is_kept


@pytest.fixture
def sink(target: RunningBroker, topic: str) -> SinkOptions:
    create(target.bootstrap, topic, 2)
    return options(target.bootstrap, topic)


@pytest.fixture
def cluster(target: RunningBroker) -> Iterator[Cluster]:
    with Cluster(target.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def query(topic: str) -> str:
    return f"query-{topic}"


def written(sink: SinkOptions, task: Task, *texts: str) -> Transaction:
    transaction = write_rows(sink, task, [rows(*texts)]).transaction
    assert transaction is not None
    return transaction


def die(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, after: int = 0) -> None:
    """The driver dies instead of calling this, or instead of calling it once more."""
    real, calls = getattr(owner, name), 0

    def dies(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls > after:
            raise DriverDied
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, dies)


def open_ids(cluster: Cluster, query: str) -> list[str]:
    prefix = two_phase.task_prefix(query)
    listed = TransactionAdmin(cluster).transactions(states=["Ongoing"])
    return [each.transactional_id for each in listed if each.transactional_id.startswith(prefix)]


@pytest.mark.usefixtures("has_two_phase")
class TestDriverDies:
    def batch(self, sink: SinkOptions, cluster: Cluster, query: str) -> None:
        both = [written(sink, Task(query, 3, 0), "a", "b"), written(sink, Task(query, 3, 1), "c")]
        commit_batch(cluster, query, 3, both)

    def repeat(self, sink: SinkOptions, cluster: Cluster, query: str) -> None:
        """Rows fall to other tasks, of which there are more."""
        again = [write_rows(sink, Task(query, 3, index), [rows(text)]) for index, text in enumerate("cba")]
        commit_batch(cluster, query, 3, [each.transaction for each in again if each.transaction is not None])

    def check(self, sink: SinkOptions, cluster: Cluster, query: str) -> None:
        assert sink.topic is not None
        assert open_ids(cluster, query) == []
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a", "b", "c"]

    def test_before_the_decision(
        self, sink: SinkOptions, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            die(patch, Commits, "decide")
            with pytest.raises(DriverDied):
                self.batch(sink, cluster, query)
        assert len(open_ids(cluster, query)) == 2
        self.repeat(sink, cluster, query)
        self.check(sink, cluster, query)

    @pytest.mark.parametrize("commits", [0, 1])
    def test_between_the_decision_and_the_commits(
        self, sink: SinkOptions, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch, commits: int
    ) -> None:
        with monkeypatch.context() as patch:
            die(patch, two_phase, "_commit", after=commits)
            with pytest.raises(DriverDied):
                self.batch(sink, cluster, query)
        assert len(open_ids(cluster, query)) == 2 - commits
        self.repeat(sink, cluster, query)
        self.check(sink, cluster, query)

    def test_after_the_commits(self, sink: SinkOptions, cluster: Cluster, query: str) -> None:
        self.batch(sink, cluster, query)
        self.repeat(sink, cluster, query)
        self.check(sink, cluster, query)
        write_batch(sink, Task(query, 4, 0), [rows("d")])
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a", "b", "c", "d"]

    def test_and_the_batch_has_no_rows_when_it_is_repeated(
        self, sink: SinkOptions, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            die(patch, two_phase, "_commit")
            with pytest.raises(DriverDied):
                self.batch(sink, cluster, query)
        commit_batch(cluster, query, 3, [])
        self.check(sink, cluster, query)

    def test_and_the_next_batch_is_committed_before_anybody_finished_this_one(
        self, sink: SinkOptions, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next decision takes the place of the last one, which is finished before that."""
        with monkeypatch.context() as patch:
            die(patch, two_phase, "_commit")
            with pytest.raises(DriverDied):
                self.batch(sink, cluster, query)
        write_batch(sink, Task(query, 4, 7), [rows("d")])
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a", "b", "c", "d"]

    @pytest.mark.parametrize("has_rows", [True, False])
    def test_and_a_coordinator_is_away_when_the_next_batch_is_committed(
        self,
        sink: SinkOptions,
        cluster: Cluster,
        query: str,
        monkeypatch: pytest.MonkeyPatch,
        has_rows: bool,
    ) -> None:
        """The brokers that are left list no transaction of such a coordinator."""
        with monkeypatch.context() as patch:
            die(patch, two_phase, "_commit")
            with pytest.raises(DriverDied):
                self.batch(sink, cluster, query)
        with monkeypatch.context() as patch:
            patch.setattr(TransactionAdmin, "transactions", lambda *_, **__: [])
            if has_rows:
                write_batch(sink, Task(query, 4, 7), [rows("d")])
            else:
                commit_batch(cluster, query, 4, [])
        assert open_ids(cluster, query) == []
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == [
            "a",
            "b",
            "c",
            *(["d"] if has_rows else []),
        ]

    def test_unconfirmed_decision_is_found(
        self, sink: SinkOptions, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Spark aborts a batch whose commit failed; what is decided is not aborted."""
        decide = Commits.decide

        def unconfirmed(commits: Commits, decision: Decision) -> None:
            decide(commits, decision)
            raise DriverDied

        both = [written(sink, Task(query, 3, 0), "a", "b"), written(sink, Task(query, 3, 1), "c")]
        with monkeypatch.context() as patch:
            patch.setattr(Commits, "decide", unconfirmed)
            with pytest.raises(DriverDied):
                commit_batch(cluster, query, 3, both)
        settle(cluster, query, both)
        self.check(sink, cluster, query)

    def test_a_failed_batch_leaves_nothing(self, sink: SinkOptions, cluster: Cluster, query: str) -> None:
        """Also of attempts of which the driver knows nothing."""
        known = written(sink, Task(query, 3, 0), "a")
        for attempt in range(3):
            written(sink, Task(query, 3, 1, attempt, attempt), "b")
        settle(cluster, query, [known])
        assert open_ids(cluster, query) == []
        assert sink.topic is not None
        assert read(sink.access.bootstrap, sink.topic) == []


@pytest.mark.parametrize("query", ["a", "b"])
def test_topic_of_decisions_that_a_broker_made_is_refused(tmp_path: Path, query: str) -> None:
    """It has one partition, which is that of the first query, and retention deletes its records."""
    with start_broker(tmp_path) as broker:
        with Cluster(broker.bootstrap) as cluster, Commits(cluster, query) as commits:
            create(broker.bootstrap, TOPIC, 1)
            with pytest.raises(TidemillError, match="has 1 partitions and needs 16"):
                commits.fence()
            Admin(cluster).delete_topic(TOPIC)
        with Cluster(broker.bootstrap) as cluster, Commits(cluster, query) as commits:
            assert commits.fence() is None
            assert Admin(cluster).topic_values([TOPIC], "cleanup.policy") == {TOPIC: "compact"}


class TestCoordinatorIsAway:
    """The driver is alive, and one of three transactions cannot be ended."""

    @pytest.fixture
    def three(self, sink: SinkOptions, query: str) -> list[Transaction]:
        return [written(sink, Task(query, 3, index), text) for index, text in enumerate("abc")]

    def away(self, patch: pytest.MonkeyPatch, name: str, transaction: Transaction) -> None:
        """Each request of this kind about the transaction fails."""
        real = getattr(TransactionCoordinator, name)

        def refused(coordinator: TransactionCoordinator, *args: object, **kwargs: object) -> object:
            if coordinator._transactional_id == transaction.transactional_id:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return real(coordinator, *args, **kwargs)

        patch.setattr(TransactionCoordinator, name, refused)

    @pytest.mark.parametrize("step", ["take_over", "end"])
    def test_others_are_aborted(
        self,
        sink: SinkOptions,
        cluster: Cluster,
        query: str,
        three: list[Transaction],
        monkeypatch: pytest.MonkeyPatch,
        step: str,
    ) -> None:
        with monkeypatch.context() as patch:
            self.away(patch, step, three[1])
            with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
                settle(cluster, query, three)
        assert open_ids(cluster, query) == [three[1].transactional_id]
        settle(cluster, query)
        assert open_ids(cluster, query) == []
        assert sink.topic is not None
        assert read(sink.access.bootstrap, sink.topic) == []

    def test_others_are_committed_when_the_batch_is_decided(
        self,
        sink: SinkOptions,
        cluster: Cluster,
        query: str,
        three: list[Transaction],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        with monkeypatch.context() as patch:
            self.away(patch, "end", three[0])
            with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
                commit_batch(cluster, query, 3, three)
            with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
                settle(cluster, query, three)
        assert open_ids(cluster, query) == [three[0].transactional_id]
        settle(cluster, query)
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a", "b", "c"]

    def test_transactions_of_the_tasks_are_ended_when_none_can_be_listed(
        self, cluster: Cluster, query: str, three: list[Transaction], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: object, **__: object) -> None:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        with monkeypatch.context() as patch:
            patch.setattr(TransactionAdmin, "transactions", refused)
            with pytest.raises(ApiError, match="COORDINATOR_LOAD_IN_PROGRESS"):
                settle(cluster, query, three)
        assert open_ids(cluster, query) == []


class TestOthersAtWork:
    def test_two_drivers_decide_once(self, sink: SinkOptions, cluster: Cluster, query: str) -> None:
        with Commits(cluster, query) as first:
            assert first.fence() is None
            older = written(sink, Task(query, 0, 0), "a", "b")
            two_phase._held_for_good(cluster, older)
            write_batch(sink, Task(query, 0, 0), [rows("b", "a")])
            with pytest.raises(Fenced):
                first.decide(Decision(0, (older,)))
        settle(cluster, query, [older])
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a", "b"]

    def test_a_zombie_cannot_abort_what_is_decided(
        self, sink: SinkOptions, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A task of an earlier life wakes up between the decision and the commit, under the same name."""
        task = Task(query, 0, 0)
        commit = two_phase._commit

        def zombie_first(*args: object) -> None:
            assert write_rows(sink, task, [rows("zombie")]).transaction is None
            commit(*args)  # type: ignore[arg-type]

        transaction = written(sink, task, "a")
        monkeypatch.setattr(two_phase, "_commit", zombie_first)
        commit_batch(cluster, query, 0, [transaction])
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a"]
        assert open_ids(cluster, query) == []

    def test_a_task_that_another_fences_while_it_looks_for_the_decision_looks_again(
        self, sink: SinkOptions, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Tasks that begin together, each behind a transaction that was left open, do this to each other."""
        task = Task(query, 0, 0)
        written(sink, task, "left open")
        write, others = Commits._write, iter([1])

        def fenced_first(commits: Commits, key: bytes, value: bytes | None) -> None:
            if next(others, None):
                two_phase._fence(cluster, query)
            write(commits, key, value)

        monkeypatch.setattr(Commits, "_write", fenced_first)
        write_batch(sink, task, [rows("a")])
        assert next(others, None) is None
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a"]
        assert open_ids(cluster, query) == []

    @pytest.mark.parametrize("is_decided", [False, True])
    def test_a_driver_that_a_task_fences_decides_once(
        self,
        sink: SinkOptions,
        cluster: Cluster,
        query: str,
        monkeypatch: pytest.MonkeyPatch,
        is_decided: bool,
    ) -> None:
        """Before its decision, or after it and before the driver has the answer."""
        decide, calls = Commits.decide, itertools.count()

        def fenced(commits: Commits, decision: Decision) -> None:
            if next(calls):
                decide(commits, decision)
                return
            if is_decided:
                decide(commits, decision)
            two_phase._fence(cluster, query)
            if is_decided:
                raise Fenced("the answer was lost, and the next try comes too late")
            decide(commits, decision)

        monkeypatch.setattr(Commits, "decide", fenced)
        write_batch(sink, Task(query, 0, 0), [rows("a", "b")])
        assert next(calls) == (1 if is_decided else 2)
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a", "b"]
        assert open_ids(cluster, query) == []

    def test_a_takeover_before_the_commit_loses_nothing(
        self, sink: SinkOptions, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        transaction = written(sink, Task(query, 0, 0), "a")
        commit = two_phase._commit

        def taken_over_first(*args: object) -> None:
            TransactionCoordinator(cluster, transaction.transactional_id).take_over()
            commit(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(two_phase, "_commit", taken_over_first)
        commit_batch(cluster, query, 0, [transaction])
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a"]

    def test_a_decided_transaction_does_not_time_out(
        self, target: RunningBroker, topic: str, cluster: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create(target.bootstrap, topic)
        sink = options(target.bootstrap, topic, **{"kafka.transaction.timeout.ms": "1"})
        transaction = written(sink, Task(query, 0, 0), "a")
        with monkeypatch.context() as patch:
            die(patch, two_phase, "_commit")
            with pytest.raises(DriverDied):
                commit_batch(cluster, query, 0, [transaction])
        # Another of the same timeout shows that it has passed.
        other = written(sink, Task("other", 0, 0), "b")
        admin = TransactionAdmin(cluster)
        eventually(
            lambda: admin.describe(other.transactional_id).state == "CompleteAbort", "the timeout of another"
        )
        assert open_ids(cluster, query) == [transaction.transactional_id]
        settle(cluster, query)
        assert values(read(target.bootstrap, topic)) == ["a"]

    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_without_the_right_a_decided_transaction_that_timed_out_is_reported(
        self,
        target: RunningBroker,
        topic: str,
        cluster: Cluster,
        query: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        is_restarted: bool,
    ) -> None:
        """By the driver that decided, or by the one after it."""
        create(target.bootstrap, topic)
        take_over, decide = TransactionCoordinator.take_over, Commits.decide

        def not_allowed(coordinator: TransactionCoordinator, *, two_phase: bool = False) -> object:
            if two_phase:
                raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return take_over(coordinator)

        def slow(commits: Commits, decision: Decision) -> None:
            decide(commits, decision)
            # As the timeout does it, two epochs after the writer's.
            holder = transaction.writer._replace(producer_epoch=transaction.producer_epoch + 1)
            TransactionCoordinator(cluster, transaction.transactional_id).end(holder, is_commit=False)
            if is_restarted:
                raise DriverDied

        monkeypatch.setattr(TransactionCoordinator, "take_over", not_allowed)
        transaction = written(options(target.bootstrap, topic), Task(query, 0, 0), "a")
        with monkeypatch.context() as patch:
            patch.setattr(Commits, "decide", slow)
            with pytest.raises(DriverDied if is_restarted else TransactionLost):
                commit_batch(cluster, query, 0, [transaction])
        if is_restarted:
            commit_batch(cluster, query, 0, [])
            assert f"{transaction.transactional_id} timed out between the decision" in caplog.text
        assert read(target.bootstrap, topic) == []

    @pytest.mark.usefixtures("has_two_phase")
    def test_a_transaction_that_timed_out_fails_the_whole_batch(
        self, target: RunningBroker, topic: str, cluster: Cluster, query: str
    ) -> None:
        create(target.bootstrap, topic)
        sink = options(target.bootstrap, topic)
        short = options(target.bootstrap, topic, **{"kafka.transaction.timeout.ms": "1"})
        both = [written(sink, Task(query, 0, 0), "a"), written(short, Task(query, 0, 1), "b")]
        admin = TransactionAdmin(cluster)
        eventually(lambda: admin.describe(both[1].transactional_id).state == "CompleteAbort", "its timeout")
        with pytest.raises(TransactionLost, match=r"/1-0\.0 of a task .*kafka\.transaction\.timeout\.ms"):
            commit_batch(cluster, query, 0, both)
        settle(cluster, query, both)
        assert read(target.bootstrap, topic) == []
        write_batch(sink, Task(query, 0, 0), [rows("a", "b")])
        assert values(read(target.bootstrap, topic)) == ["a", "b"]

    def test_queries_whose_names_begin_alike_are_strangers(
        self, sink: SinkOptions, cluster: Cluster, query: str
    ) -> None:
        others = [f"{query}-eu", f"{query}/eu", f"{query}%2Feu"]
        open_ones = [written(sink, Task(each, 0, 0), "b") for each in others]
        write_batch(sink, Task(query, 0, 0), [rows("a")])
        for each, transaction in zip(others, open_ones, strict=True):
            assert open_ids(cluster, each) == [transaction.transactional_id]
            commit_batch(cluster, each, 0, [transaction])
        assert sink.topic is not None
        assert values(read(sink.access.bootstrap, sink.topic)) == ["a", "b", "b", "b"]


def test_a_batch_of_many_tasks_is_decided(cluster: Cluster, query: str) -> None:
    """Its decision is one record."""
    query_id = "5d2c6f6e-0f5e-4a53-9a65-6e5a3c1f7b21"
    many = tuple(
        Transaction(Task(query_id, 0, each, 0, each, "0a1b2c3d").transactional_id, 1000 + each, each % 7)
        for each in range(15_000)
    )
    with Commits(cluster, query) as commits:
        commits.fence()
        commits.decide(Decision(0, many))
        assert commits.fence() == Decision(0, many)


def test_a_decision_that_is_too_large_says_what_to_do(cluster: Cluster, query: str) -> None:
    with Commits(cluster, query) as commits:
        commits.fence()
        noise = tuple(Transaction(os.urandom(500).hex(), 1, 0) for _ in range(3_000))
        with pytest.raises(TidemillError, match="about 3,000 tasks is too large: write with fewer tasks"):
            commits.decide(Decision(0, noise))


def test_many_transactions_are_ended_over_several_connections(
    sink: SinkOptions, cluster: Cluster, query: str
) -> None:
    both = [written(sink, Task(query, 0, each), f"{each:02}") for each in range(40)]
    commit_batch(cluster, query, 0, both)
    assert sink.topic is not None
    assert values(read(sink.access.bootstrap, sink.topic)) == [f"{each:02}" for each in range(40)]
    for each in range(40):
        written(sink, Task(query, 1, each), "never")
    settle(cluster, query)
    assert open_ids(cluster, query) == []


def test_the_topic_of_decisions_is_internal_to_our_tools_only(
    sink: SinkOptions, cluster: Cluster, query: str, topic: str
) -> None:
    write_batch(sink, Task(query, 0, 0), [rows("a")])
    matched = {each.topic for each in Log(cluster, Subscription(pattern=".*")).partitions()}
    assert topic in matched
    assert TOPIC not in matched
    (listed,) = [each for each in Admin(cluster).topics() if each.name == TOPIC]
    assert listed.is_internal
    answer = cluster.any_broker().request(
        MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), MetadataResponse
    )
    assert not answer.topics[0].is_internal


class TestWriters:
    def test_a_stream_of_which_no_task_was_heard_is_known_by_its_checkpoint(
        self, target: RunningBroker, sink: SinkOptions, cluster: Cluster, topic: str, query: str
    ) -> None:
        told = {"kafka.bootstrap.servers": target.bootstrap, "topic": topic}
        mine, other = (SinkOptions.parse(told | {"checkpointLocation": f"/{topic}/{each}"}) for each in "ab")
        written(mine, Task(query, 0, 0, mark=mine.mark), "a")
        left = written(other, Task(f"{query}-other", 0, 0, mark=other.mark), "b")
        StreamWriter(SCHEMA, told | {"checkpointLocation": f"/{topic}/a"}).abort([None], 0)
        assert open_ids(cluster, query) == []
        assert open_ids(cluster, f"{query}-other") == [left.transactional_id]
        settle(cluster, f"{query}-other")

    @pytest.mark.parametrize("scheme", ["", "file:", "file://"])
    def test_a_stream_that_fails_leaves_a_stranger_with_the_same_path_alone(
        self,
        target: RunningBroker,
        sink: SinkOptions,
        cluster: Cluster,
        topic: str,
        query: str,
        tmp_path: Path,
        scheme: str,
    ) -> None:
        """The path may mean a folder on another machine. The id in the checkpoint tells them apart."""
        told = {"kafka.bootstrap.servers": target.bootstrap, "topic": topic}
        told["checkpointLocation"] = f"{scheme}{tmp_path}"
        (tmp_path / "metadata").write_text(json.dumps({"id": query}))
        mark = SinkOptions.parse(told).mark
        written(sink, Task(query, 0, 0, mark=mark), "a")
        stranger = written(sink, Task(f"{query}-other", 0, 0, mark=mark), "b")
        StreamWriter(SCHEMA, told).abort([None], 0)
        assert open_ids(cluster, query) == []
        commit_batch(cluster, f"{query}-other", 0, [stranger])
        assert values(read(target.bootstrap, topic)) == ["b"]

    def test_streams_to_other_topics_have_other_marks(self) -> None:
        """Where the checkpoint is not readable: a path on another machine, or in a bucket."""
        told = {"kafka.bootstrap.servers": "127.0.0.1:1", "checkpointLocation": "s3://bucket/checkpoint"}
        marks = {SinkOptions.parse(told | {"topic": each}).mark for each in "ab"}
        assert len(marks) == 2

    def test_a_batch_of_foreach_batch_is_committed_once(
        self, target: RunningBroker, sink: SinkOptions, topic: str
    ) -> None:
        told = {"kafka.bootstrap.servers": target.bootstrap, "topic": topic, "queryName": topic}

        def write(batch_id: int, *texts: str) -> None:
            writer = BatchWriter(SCHEMA, told | {"batchId": str(batch_id)})
            task = Task(writer._query_id, batch_id, 0)
            writer.commit([write_rows(writer._options, task, [rows(*texts)])])

        for batch_id, text in [(0, "a"), (0, "a"), (1, "b"), (0, "a"), (1, "b")]:
            write(batch_id, text)
        assert values(read(target.bootstrap, topic)) == ["a", "b"]

    def test_a_job_without_a_name_leaves_no_decision(
        self, target: RunningBroker, sink: SinkOptions, cluster: Cluster, topic: str
    ) -> None:
        writer = BatchWriter(SCHEMA, {"kafka.bootstrap.servers": target.bootstrap, "topic": topic})
        told = write_rows(writer._options, Task(writer._query_id, 0, 0), [rows("a")])
        writer.commit([told, Written(writer._query_id), None])
        with Commits(cluster, writer._query_id) as commits:
            assert commits.fence() is None
        assert values(read(target.bootstrap, topic)) == ["a"]

    def test_writes_of_one_batch_are_distinguished_by_their_names(
        self, target: RunningBroker, sink: SinkOptions, topic: str
    ) -> None:
        """Rows name their topics, so the option does not."""
        create(target.bootstrap, f"{topic}-2")
        schema = StructType([StructField("value", StringType()), StructField("topic", StringType())])
        told = {"kafka.bootstrap.servers": target.bootstrap, "queryName": topic, "batchId": "0"}
        for written_to in (topic, f"{topic}-2", topic):
            writer = BatchWriter(schema, told | {"writeName": f"to {written_to}"})
            batch = pa.RecordBatch.from_pydict({"value": ["a"], "topic": [written_to]})
            writer.commit([write_rows(writer._options, Task(writer._query_id, 0, 0), [batch])])
        assert values(read(target.bootstrap, topic)) == ["a"]
        assert values(read(target.bootstrap, f"{topic}-2")) == ["a"]

    @pytest.mark.parametrize(("owner", "name"), [(Commits, "forget"), (two_phase, "settle")])
    def test_a_job_whose_rows_are_committed_does_not_fail(
        self,
        target: RunningBroker,
        sink: SinkOptions,
        topic: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        owner: object,
        name: str,
    ) -> None:
        """Started again, it would write them once more."""

        def fails(*_: object) -> None:
            raise TidemillError("the broker is gone")

        writer = BatchWriter(SCHEMA, {"kafka.bootstrap.servers": target.bootstrap, "topic": topic})
        told = write_rows(writer._options, Task(writer._query_id, 0, 0), [rows("a")])
        monkeypatch.setattr(owner, name, fails)
        writer.commit([told])
        assert "the broker is gone" in caplog.text
        assert values(read(target.bootstrap, topic)) == ["a"]

    @pytest.mark.parametrize(
        ("told", "line"),
        [
            ({"batchId": "1"}, "set both, or neither"),
            ({"batchId": "x", "queryName": "q"}, "batchId=x is not understood"),
            ({"batchId": "1", "queryName": "q", "topic": ""}, "set the option topic, or writeName"),
        ],
    )
    def test_batch_ids_are_checked(self, told: dict[str, str], line: str) -> None:
        with pytest.raises(ConfigError, match=line):
            SinkOptions.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"} | told)

    def test_a_stream_has_its_own_batch_ids(self) -> None:
        told = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "batchId": "1", "queryName": "q"}
        with pytest.raises(ConfigError, match="a stream has its own"):
            StreamWriter(SCHEMA, told)
