"""Random histories of consumer groups: no partition has two owners, every member reaches its target assignment, and a
replay of the log gives the same state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.scenarios.consumer_world import ClassicConsumer, Consumer, ConsumerWorld
from tests.thoroughness import examples
from tidemill.config import GroupsConfig
from tidemill.coordinator.groups.group import GroupType
from tidemill.errors import ErrorCode
from tidemill.types import TopicId

TOPICS = ["a", "b", "c"]
# Without an explanation of failures, which takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
SESSION_MS = 45_000

clients = st.integers(0, 5)
subscriptions = st.lists(st.sampled_from(TOPICS), unique=True, max_size=3)
steps = st.one_of(
    st.tuples(st.just("heartbeat"), clients, st.booleans(), st.booleans()),
    st.tuples(st.just("heartbeat"), clients, st.just(False), st.just(False)),
    st.tuples(st.just("subscribe"), clients, subscriptions),
    st.tuples(st.just("subscribe_regex"), clients, st.sampled_from(["a|b", "[bc]", ".*", "x", ""])),
    st.tuples(st.just("assignor"), clients, st.sampled_from(["range", "uniform"])),
    st.tuples(st.just("leave"), clients),
    st.tuples(st.just("crash"), clients),
    st.tuples(st.just("grow"), st.sampled_from(TOPICS), st.integers(1, 3)),
    st.tuples(st.just("drop"), st.sampled_from(TOPICS)),
    st.tuples(st.just("advance"), st.sampled_from([1, 900, 3_000, 12_000, 50_000])),
    st.tuples(st.just("move")),
    st.tuples(st.just("refuse"), clients),
)


@dataclass
class Life:
    interval_ms: int
    consumers: list[Consumer] = field(default_factory=list)
    crashes: int = 0

    def __post_init__(self) -> None:
        config = GroupsConfig(group_consumer_assignment_interval_ms=self.interval_ms)
        self.world = ConsumerWorld(config=config, steady_ms=1)
        for topic in TOPICS:
            self.world.topics.create(topic, 2)
        for index in range(6):
            instance = f"i{index}" if index >= 4 else None
            self.consumers.append(Consumer(self.world, f"m{index}", ["a", "b"], instance_id=instance))

    def take(self, step: Any) -> None:
        name, *arguments = step
        getattr(self, f"do_{name}")(*arguments)
        self.check()

    def check(self) -> None:
        """Checks the partitions that the consumers own, not those that the coordinator records for them."""
        held: dict[tuple[TopicId, int], str] = {}
        for consumer in self.consumers:
            for partition in consumer.owned:
                assert partition not in held, (
                    f"{consumer.member_id} and {held[partition]} both hold {partition}"
                )
                held[partition] = consumer.member_id

    def do_heartbeat(self, index: int, is_full: bool, loses_response: bool) -> None:
        self.consumers[index].heartbeat(full=is_full, loses_response=loses_response)

    def do_subscribe(self, index: int, topics: list[str]) -> None:
        self.consumers[index].topics = topics
        self.consumers[index].heartbeat(full=True)

    def do_subscribe_regex(self, index: int, regex: str) -> None:
        self.consumers[index].regex = regex
        self.consumers[index].heartbeat(full=True)

    def do_assignor(self, index: int, name: str) -> None:
        self.consumers[index].assignor = name
        self.consumers[index].heartbeat(full=True)

    def do_leave(self, index: int) -> None:
        self.consumers[index].leave()

    def do_crash(self, index: int) -> None:
        """It comes back as another process, under the same instance id if it has one."""
        consumer = self.consumers[index]
        self.crashes += 1
        consumer.owned, consumer.epoch = set(), 0
        consumer.member_id = f"m{index}-{self.crashes}"

    def do_grow(self, topic: str, by: int) -> None:
        self.world.grow(topic, (self.world.topics.partitions_of(topic) or 0) + by)

    def do_drop(self, topic: str) -> None:
        if self.world.topics.partitions_of(topic) is not None:
            self.world.drop(topic)

    def do_advance(self, duration_ms: int) -> None:
        self.world.advance(duration_ms)
        for consumer in self.consumers:
            if self.world.steady_ms >= consumer.heard_at_ms + SESSION_MS:
                # A consumer that cannot reach the coordinator for that long stops by itself.
                consumer.owned, consumer.epoch = set(), 0

    def do_move(self) -> None:
        self.world.move_coordinator()

    def do_refuse(self, index: int) -> None:
        self.world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS
        self.consumers[index].heartbeat()
        self.world.log.refuse_with = None

    def settle(self) -> None:
        """All consumers run normally for a while."""
        for _ in range(30):
            self.world.advance(3_000)
            for consumer in self.consumers:
                consumer.heartbeat(full=consumer.epoch == 0)
                self.check()


@settings(max_examples=examples(100), deadline=None, phases=PHASES)
@given(st.sampled_from([0, 1_000]), st.lists(steps, min_size=15, max_size=60))
def test_no_partition_is_held_twice_and_all_converge(interval_ms: int, life_steps: list[Any]) -> None:
    life = Life(interval_ms)
    for consumer in life.consumers[:3]:
        consumer.heartbeat()
    for step in life_steps:
        life.take(step)
    assert life.world.rebuilt().replicated_state() == life.world.groups.replicated_state()
    life.settle()
    world = life.world
    group = world.group()
    assert group.state == "Stable"
    wanted: set[tuple[TopicId, int]] = set()
    for consumer in life.consumers:
        member = group.members[consumer.member_id]
        mine = {(topic_id, p) for topic_id, ps in group.target_of(member).items() for p in ps}
        assert consumer.owned == mine
        assert consumer.epoch == member.member_epoch == group.assignment_epoch
        topics = {topic_id for name in group.topics_of(member) if (topic_id := world.topics.id_of(name))}
        assert {topic_id for topic_id, _ in consumer.owned} <= topics
        for topic_id in topics:
            name = world.topics.name_of(topic_id)
            assert name is not None
            wanted |= {(topic_id, p) for p in range(world.topics.partitions_of(name) or 0)}
    held = [partition for consumer in life.consumers for partition in consumer.owned]
    assert sorted(held) == sorted(wanted)
    assert world.rebuilt().replicated_state() == world.groups.replicated_state()


migration_steps = st.one_of(
    st.tuples(st.just("classic"), st.integers(0, 2)),
    st.tuples(st.just("classic"), st.integers(0, 2)),
    st.tuples(st.just("heartbeat"), clients, st.booleans(), st.booleans()),
    st.tuples(st.just("leave"), clients),
    st.tuples(st.just("classic_crash"), st.integers(0, 2)),
    st.tuples(st.just("advance"), st.sampled_from([0, 100, 3_000, 12_000, 61_000])),
    st.tuples(st.just("grow"), st.sampled_from(TOPICS), st.integers(1, 3)),
    st.tuples(st.just("move")),
)


@dataclass
class Migration(Life):
    """Consumers of both protocols in one group, which changes its kind as they come and go."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.classics = [ClassicConsumer(self.world, f"old{index}", ["a", "b"]) for index in range(3)]

    def check(self) -> None:
        while self.world.answered:
            asked, response = self.world.answered.pop(0)
            for classic in self.classics:
                if classic.name == asked.client:
                    classic.hear(response)
        held = [partition for consumer in self.consumers for partition in consumer.owned]
        held += [partition for classic in self.classics for partition in classic.owned]
        assert len(held) == len(set(held)), "a partition is held twice"

    def do_heartbeat(self, index: int, is_full: bool, loses_response: bool) -> None:
        consumer = self.consumers[index]
        if consumer.heartbeat(full=is_full, loses_response=loses_response) is ErrorCode.GROUP_ID_NOT_FOUND:
            consumer.owned, consumer.epoch = set(), 0

    def do_classic(self, index: int) -> None:
        self.classics[index].step()

    def do_classic_crash(self, index: int) -> None:
        self.crashes += 1
        name = f"old{index}-{self.crashes}"
        self.classics[index] = ClassicConsumer(self.world, name, ["a", "b"])

    def do_advance(self, duration_ms: int) -> None:
        super().do_advance(duration_ms)
        for consumer in self.classics:
            if consumer.state != "wait" and self.world.steady_ms >= consumer.heard_at_ms + SESSION_MS:
                consumer.owned, consumer.state = set(), "join"

    def start_classics(self) -> None:
        for _ in range(10):
            self.do_advance(2_000)
            self.check()
            for classic in self.classics:
                classic.step()
                self.check()
        assert all(classic.state == "heartbeat" for classic in self.classics)
        assert any(classic.owned for classic in self.classics)

    def settle_classics(self) -> None:
        """The others leave, static ones by falling silent for longer than a session, and the group is classic again."""
        for consumer in self.consumers:
            consumer.leave()
            consumer.owned, consumer.epoch = set(), 0
        for index in range(3):
            # A leader that starts again sees the present topics.
            self.do_classic_crash(index)
        for _ in range(80):
            self.do_advance(2_000)
            self.check()
            for classic in self.classics:
                classic.step()
                self.check()


@settings(max_examples=examples(100), deadline=None, phases=PHASES)
@given(st.lists(migration_steps, min_size=15, max_size=60))
def test_no_partition_is_held_twice_while_a_group_migrates(life_steps: list[Any]) -> None:
    life = Migration(0)
    life.start_classics()
    for step in life_steps:
        life.take(step)
    assert life.world.rebuilt().replicated_state() == life.world.groups.replicated_state()
    life.settle_classics()
    group = life.world.groups.groups["g"]
    assert (group.type, group.state) == (GroupType.CLASSIC, "Stable")
    held = [partition for consumer in life.classics for partition in consumer.owned]
    topics = life.world.topics
    wanted = {(topics.id_of(name), p) for name in ("a", "b") for p in range(topics.partitions_of(name) or 0)}
    assert sorted(held) == sorted(wanted)
    assert life.world.rebuilt().replicated_state() == life.world.groups.replicated_state()
