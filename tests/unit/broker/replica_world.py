"""Several brokers' `Replicas`, with their fetch and produce handlers, on virtual time; the test is their controller.

Each broker is a loop, a simulated disk and a `Replicas`. The world keeps the one image and passes every change to every
broker that is up. AlterPartition requests are applied as the controller would, unless the test refuses or holds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from tidemill.broker.coordinators.marker_writer import MarkerWriter
from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.net.channel import Channels
from tidemill.broker.net.network import ServerLimits
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import TABLE, Scope
from tidemill.broker.requests.dispatch import Dispatcher
from tidemill.broker.requests.fetch_sessions import FetchSessions
from tidemill.broker.requests.node_proof import ReplicaProofs
from tidemill.config import load_broker_config
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage, PartitionImage
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.datadir import DataDir
from tidemill.protocol.api import RESPONSES
from tidemill.protocol.api.brokers import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from tidemill.protocol.api.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.protocol.api.metadata import (
    BrokerEndpoint,
    ConfigRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
)
from tidemill.protocol.frames import LENGTH_BYTES, parse_response, request_frame
from tidemill.protocol.records import BatchHeader, Record, build_batch, iterate_records, split_batches
from tidemill.protocol.schema import DataMessage, Request, Response
from tidemill.raft.voters import VoterSet
from tidemill.security.principals import ANONYMOUS
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.sim.platform.loops import Scheduler, SimulatedLoop
from tidemill.sim.platform.network import Wires
from tidemill.sim.platform.platform import DiskSpeed, WallClock, simulated_platform

assert handlers

PORT = 9092
DATA = "/data"
LIMIT_S = 60.0
TOPIC = "t"
TOPIC_ID = bytes(range(16))


class Reply:
    def __init__(self) -> None:
        self.parts: list[Any] | None = None

    def send(self, parts: Sequence[Any]) -> None:
        assert self.parts is None, "answered twice"
        self.parts = [
            part if isinstance(part, bytes | bytearray | memoryview) else part.read() for part in parts
        ]


class FakePeer:
    """A client's connection as handlers see it."""

    peer = "test"
    listener_name = "PLAINTEXT"
    principal = ANONYMOUS
    local_address = ("localhost", PORT)
    received_s = 0.0

    def __init__(self) -> None:
        self.is_closed = False
        self.close_callbacks: list[Callable[[], None]] = []
        self.replies: list[Reply] = []

    def mark_as_node(self) -> None: ...

    def mute_for(self, throttle_ms: int) -> None: ...

    def add_kept_bytes(self, count: int) -> None: ...

    def expect_reply(self) -> Reply:
        self.replies.append(Reply())
        return self.replies[-1]

    def close(self, reason: str | None) -> None:
        self.is_closed = True


class Answer:
    """The response to a request that may still be under way."""

    def __init__(self, request: Request, version: int, peer: FakePeer) -> None:
        self._request = request
        self._version = version
        self._peer = peer

    @property
    def is_there(self) -> bool:
        return bool(self._peer.replies) and self._peer.replies[0].parts is not None

    @property
    def response(self) -> Any:
        parts = self._peer.replies[0].parts
        assert parts is not None, f"no answer to {self._request}"
        frame = b"".join(bytes(part) for part in parts)[LENGTH_BYTES:]
        return parse_response(RESPONSES[self._request.api_key], self._version, frame)[1]


@dataclass
class Host:
    """A broker, up or down."""

    id: int
    world: World
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    rack: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    broker_epoch: int = -1
    metadata_known_ms: int = -1
    loop: SimulatedLoop | None = None
    replicas: Replicas = field(init=False)
    broker: Any = None
    fatal: list[str] = field(default_factory=list)
    starts: int = 0

    @property
    def name(self) -> str:
        return f"b{self.id}"

    @property
    def is_up(self) -> bool:
        return self.loop is not None

    def partition(self, index: int = 0, topic: str = TOPIC) -> Partition:
        found, error = self.replicas.find((topic, index))
        assert found is not None, error
        return found

    @property
    def log(self) -> Any:
        log = self.partition().log
        assert log is not None
        return log

    @property
    def high_watermark(self) -> int:
        return self.partition().high_watermark

    def values(self, end_offset: int | None = None) -> list[bytes]:
        """What the log holds."""
        found = []
        for segment in self.log.segments:
            for _, header, batch in segment.batches():
                for record in iterate_records(batch, header):
                    if end_offset is None or record.offset < end_offset:
                        found.append(record.value or b"")
        return found


class World:
    def __init__(self, brokers: int = 3, seed: int = 0, **settings: str) -> None:
        self._rng = Random(seed)
        self.scheduler = Scheduler(self._rng)
        self.wires = Wires(self.scheduler, self._rng, lambda _what: None)
        self.image = MetadataImage("cluster")
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.errors: list[str] = []
        # What the controller does with AlterPartition; None applies it.
        self.alter_partition: Callable[[AlterPartitionRequest], ErrorCode | None] | None = None
        self.alterations: list[AlterPartitionRequest] = []
        self._dead: list[SimulatedLoop] = []
        self.hosts = {number: Host(number, self) for number in range(1, brokers + 1)}

    def __getitem__(self, broker_id: int) -> Host:
        return self.hosts[broker_id]

    def _on_exception(self, loop: SimulatedLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{loop}: {context}")

    # -- brokers ---------------------------------------------------------------------------------------------

    def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids or tuple(self.hosts):
            host = self.hosts[broker_id]
            assert host.loop is None
            host.starts += 1
            host.broker_epoch = self.image.end_offset + 1
            host.loop = self.scheduler.new_loop(host.name, self._on_exception)
            self._run_in(host, partial(self._start, host))
        for broker_id in broker_ids or tuple(self.hosts):
            host = self.hosts[broker_id]
            self.publish(
                RegisterBrokerRecord(
                    broker_id=broker_id,
                    broker_epoch=host.broker_epoch,
                    incarnation_id=host.starts.to_bytes(16),
                    rack=host.rack,
                    fenced=False,
                    end_points=[_endpoint(host.name)],
                )
            )
        for broker_id in broker_ids or tuple(self.hosts):
            host = self.hosts[broker_id]
            self._run_in(host, partial(self._serve, host))

    def _start(self, host: Host) -> None:
        loop = host.loop
        assert loop is not None
        properties = {
            "node.id": str(host.id),
            "log.dirs": DATA,
            "listeners": f"PLAINTEXT://{host.name}:{PORT}",
            "replica.fetch.backoff.ms": "100",
            **self.settings,
            **host.settings,
        }
        if host.rack is not None:
            properties["broker.rack"] = host.rack
        config, _ = load_broker_config(properties)
        rng = Random(host.id * 1000 + host.starts)
        wall = WallClock(self.scheduler, 0)
        platform = simulated_platform(
            self.scheduler, self.wires, loop, host.name, host.disk, wall, DiskSpeed(), rng, host.starts
        )
        clock = platform.clock
        data_dir = DataDir(platform.files, DATA, host.starts)
        data_dir.mark_in_use()
        syncer = Syncer(platform.run_blocking, clock.wall_ms)
        channels = Channels(platform.network, loop, client_id=host.name, frame_bytes_max=1 << 26)
        host.replicas = Replicas(
            config,
            platform,
            data_dir,
            syncer,
            lambda request: self._ask(host, request),
            channels,
            lambda: host.broker_epoch,
            lambda: host.metadata_known_ms,
            host.fatal.append,
        )
        host.broker = SimpleNamespace(
            config=config,
            loop=loop,
            clock=clock,
            wall=wall,
            replicas=host.replicas,
            marker_writer=MarkerWriter(host.replicas, cast(Any, None), clock),
            metrics=host.replicas.metrics,
            fetch_sessions=FetchSessions(100, lambda: rng.randrange(1, 1 << 31)),
            syncer=syncer,
            data_dir=data_dir,
            image=self.image,
            # Nothing waits in line here.
            lanes=SimpleNamespace(claim=lambda *_: None),
            replica_proofs=ReplicaProofs(loop),
            refused_as_nodes=set(),
            quorum=SimpleNamespace(voters=VoterSet([])),
            authorizer=None,
            quotas=None,
            address_of=lambda broker, _connection: next(
                (endpoint.host, endpoint.port) for endpoint in broker.endpoints.values()
            ),
            kraft_version=0,
            is_controller_listener=lambda _name: False,
        )
        dispatcher = Dispatcher(host.broker, {"PLAINTEXT": Scope.BOTH})
        listening = platform.network.listen(dispatcher.dispatch, ServerLimits(1 << 26, 1000, 1000, 600_000))
        listening.bind("PLAINTEXT", host.name, PORT)
        listening.start_accepting("PLAINTEXT")

    def _serve(self, host: Host) -> None:
        host.replicas.load(self.image)
        host.replicas.start()

    def kill(self, broker_id: int) -> None:
        """The process dies; the operating system keeps what it wrote."""
        self._end(self.hosts[broker_id], SimulatedDisk.kill)

    def lose_power(self, broker_id: int, *, is_silent: bool = False) -> None:
        """What was not synced may be gone. A silent one closes no connection."""
        self._end(
            self.hosts[broker_id], lambda disk: disk.crash(self._rng, keep="nothing"), is_silent=is_silent
        )

    def _end(
        self, host: Host, surviving: Callable[[SimulatedDisk], SimulatedDisk], *, is_silent: bool = False
    ) -> None:
        assert host.loop is not None
        self.wires.process_died(host.loop, is_silent=is_silent)
        host.loop.kill()
        self._dead.append(host.loop)
        host.disk = surviving(host.disk)
        host.loop = None

    def stop(self, broker_id: int) -> None:
        """A clean shutdown."""
        host = self.hosts[broker_id]
        closing = self.run(host, host.replicas.close())
        self.until(closing.done, "a clean shutdown")
        assert closing.result()
        host.broker.data_dir.mark_clean(host.broker_epoch)
        self._end(host, SimulatedDisk.kill)

    def _run_in(self, host: Host, call: Callable[[], Any]) -> Any:
        """Call something inside a broker's loop, and wait for it."""
        outcome: list[Any] = []
        assert host.loop is not None
        host.loop.call_soon(lambda: outcome.append(call()))
        self.until(lambda: bool(outcome), "a call in a broker's loop")
        return outcome[0]

    def run(self, host: Host, coroutine: Any) -> asyncio.Task[Any]:
        loop = host.loop
        assert loop is not None
        return cast("asyncio.Task[Any]", self._run_in(host, lambda: loop.create_task(coroutine)))

    # -- time ------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        self.scheduler.run_until(self.scheduler.now_s + limit_s, condition)
        assert not self.errors, self.errors
        assert condition(), f"not within {limit_s:g} s: {what}"

    def settle(self, seconds: float = 2.0) -> None:
        """Let time pass in which nothing is expected to be still under way."""
        self.scheduler.run_until(self.scheduler.now_s + seconds)
        assert not self.errors, self.errors

    def close(self) -> None:
        for host in self.hosts.values():
            if host.loop is not None:
                host.loop.kill()
                self._dead.append(host.loop)
        for loop in self._dead:
            loop.dispose()

    # -- the controller --------------------------------------------------------------------------------------

    def publish(self, *records: DataMessage, to: Iterable[int] | None = None) -> None:
        """Commit records, and let every broker that is up follow; `to` names the brokers that get them now."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply()
        for broker_id in self.hosts if to is None else to:
            self.deliver(broker_id, delta)

    def deliver(self, broker_id: int, delta: MetadataDelta) -> None:
        host, image = self.hosts[broker_id], self.image
        if host.loop is None:
            return

        def follow() -> None:
            host.broker.image = image
            if host.replicas.image is not None:
                host.replicas.apply(delta, image)

        host.loop.call_soon(follow)

    def create_topic(
        self,
        replicas: Sequence[int] = (1, 2, 3),
        *,
        partitions: int = 1,
        isr: Sequence[int] | None = None,
        name: str = TOPIC,
        topic_id: bytes = TOPIC_ID,
        **configs: str,
    ) -> None:
        records: list[DataMessage] = [TopicRecord(name=name, topic_id=topic_id)]
        for index in range(partitions):
            records.append(
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=list(replicas),
                    isr=list(replicas if isr is None else isr),
                    leader=replicas[0],
                    leader_epoch=0,
                    partition_epoch=0,
                )
            )
        for key, value in configs.items():
            records.append(
                ConfigRecord(resource_type=2, resource_name=name, name=key.replace("_", "."), value=value)
            )
        self.publish(*records)

    def delete_topic(self, topic_id: bytes = TOPIC_ID) -> None:
        self.publish(RemoveTopicRecord(topic_id=topic_id))

    def change(self, index: int = 0, *, to: Iterable[int] | None = None, **fields: Any) -> None:
        self.publish(PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, **fields), to=to)

    def fence(self, broker_id: int) -> None:
        self.publish(FenceBrokerRecord(id=broker_id, epoch=self.hosts[broker_id].broker_epoch))

    def unfence(self, broker_id: int) -> None:
        self.publish(UnfenceBrokerRecord(id=broker_id, epoch=self.hosts[broker_id].broker_epoch))

    def partition_image(self, index: int = 0) -> PartitionImage:
        found = self.image.partition(TOPIC, index)
        assert found is not None
        return found

    async def _ask(self, host: Host, request: Request) -> Response:
        """The controller's answer, a little later."""
        await asyncio.sleep(0.002)
        assert isinstance(request, AlterPartitionRequest)
        self.alterations.append(request)
        code = self.alter_partition(request) if self.alter_partition is not None else ErrorCode.NONE
        if code is None:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
        response = AlterPartitionResponse()
        for topic in request.topics:
            answers = []
            for wanted in topic.partitions:
                answers.append(self._altered(topic.topic_id, wanted, code))
            response.topics.append(
                AlterPartitionResponseTopicData(topic_id=topic.topic_id, partitions=answers)
            )
        return response

    def _altered(self, topic_id: bytes, wanted: Any, code: ErrorCode) -> AlterPartitionResponsePartitionData:
        index = wanted.partition_index
        image = self.image.topics_by_id[topic_id].partitions[index]  # type: ignore[index]
        if not code and wanted.leader_epoch != image.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        if not code and wanted.partition_epoch != image.partition_epoch:
            code = ErrorCode.INVALID_UPDATE_VERSION
        for member in wanted.new_isr_with_epochs:
            known = self.image.brokers.get(member.broker_id)
            if not code and (known is None or known.is_fenced or known.epoch != member.broker_epoch):
                code = ErrorCode.INELIGIBLE_REPLICA
        if code:
            return AlterPartitionResponsePartitionData(partition_index=index, error_code=code)
        isr = [member.broker_id for member in wanted.new_isr_with_epochs]
        self.publish(PartitionChangeRecord(partition_id=index, topic_id=topic_id, isr=isr))
        image = self.image.topics_by_id[topic_id].partitions[index]  # type: ignore[index]
        return AlterPartitionResponsePartitionData(
            partition_index=index,
            leader_id=image.leader,
            leader_epoch=image.leader_epoch,
            isr=list(image.isr),
            partition_epoch=image.partition_epoch,
        )

    def cut_off(self, broker_id: int) -> None:
        """No other broker reaches it, and it reaches none."""
        for other in self.hosts:
            if other != broker_id:
                self.wires.cut(f"b{broker_id}", f"b{other}")
                self.wires.cut(f"b{other}", f"b{broker_id}")

    def heal(self) -> None:
        self.wires.heal_all()

    # -- clients ---------------------------------------------------------------------------------------------

    def ask(self, broker_id: int, request: Request, version: int | None = None) -> Answer:
        """Hand a request to a broker's handlers."""
        host = self.hosts[broker_id]
        api = TABLE[request.api_key]
        version = api.versions.max if version is None else version
        peer = FakePeer()
        frame = bytearray(request_frame(request, version, 1, "test"))[LENGTH_BYTES:]
        dispatcher = Dispatcher(host.broker, {"PLAINTEXT": Scope.BOTH})
        self._run_in(host, lambda: dispatcher.dispatch(cast("Any", peer), memoryview(frame)))
        # As in a connection's buffer: what arrives next takes the place.
        frame[:] = bytes(len(frame))
        return Answer(request, version, peer)


def batch_of(*values: bytes) -> bytes:
    return bytes(build_batch(Record(number, 0, None, value) for number, value in enumerate(values)))


def _endpoint(host: str) -> BrokerEndpoint:
    return BrokerEndpoint(name="PLAINTEXT", host=host, port=PORT, security_protocol=0)


# -- what clients ask ----------------------------------------------------------------------------------------


def produce(
    world: World, broker_id: int, *values: bytes, acks: int = -1, timeout_ms: int = 10_000, index: int = 0
) -> Answer:
    data = PartitionProduceData(index=index, records=batch_of(*values))
    topic = TopicProduceData(topic_id=TOPIC_ID, name=TOPIC, partition_data=[data])
    return world.ask(broker_id, ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic]))


def produced(answer: Answer) -> Any:
    return answer.response.responses[0].partition_responses[0]


def write(world: World, broker_id: int, *values: bytes, acks: int = -1) -> int:
    """Produce and wait for success; the first offset."""
    answer = produce(world, broker_id, *values, acks=acks)
    world.until(lambda: answer.is_there, "an ack")
    result = produced(answer)
    assert result.error_code == ErrorCode.NONE, ErrorCode(result.error_code).name
    return int(result.base_offset)


def consume(world: World, broker_id: int, offset: int = 0, *, rack: str = "", **fields: Any) -> Any:
    """A consumer's fetch of partition 0, without waiting; its records as a list of values."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **fields)
    topic = FetchTopic(topic_id=TOPIC_ID, partitions=[partition])
    answer = world.ask(broker_id, FetchRequest(topics=[topic], rack_id=rack))
    world.until(lambda: answer.is_there, "an answer to a fetch")
    return answer.response


def read(world: World, broker_id: int, offset: int = 0) -> list[bytes]:
    """The values that a consumer sees."""
    fetched = consume(world, broker_id, offset).responses[0].partitions[0]
    assert fetched.error_code == ErrorCode.NONE, ErrorCode(fetched.error_code).name
    data = memoryview(fetched.records or b"")
    return [
        record.value or b"" for header, batch in _batches(data) for record in iterate_records(batch, header)
    ]


def _batches(data: memoryview) -> Iterable[tuple[BatchHeader, memoryview]]:
    for header in split_batches(data):
        yield header, data[: header.size]
        data = data[header.size :]


def latest(world: World, broker_id: int, *, replica_id: int = -1, timestamp: int = -1) -> Any:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = ListOffsetsTopic(name=TOPIC, partitions=[partition])
    answer = world.ask(broker_id, ListOffsetsRequest(replica_id=replica_id, topics=[topic]))
    return answer.response.topics[0].partitions[0]
