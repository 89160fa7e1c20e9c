"""Share groups under random events: replayed records give the live state, and all partitions are held in the end."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scenarios.share_world import ShareConsumer, ShareWorld
from tests.thoroughness import examples
from tidemill.errors import ErrorCode

TOPICS = ("a", "b")
MEMBERS = 4

_member = st.integers(0, MEMBERS - 1)
_topic = st.sampled_from(TOPICS)
_event = st.one_of(
    st.tuples(st.just("heartbeat"), _member, st.booleans()),
    st.tuples(st.just("lost"), _member),
    st.tuples(st.just("leave"), _member),
    st.tuples(st.just("subscribe"), _member, st.sampled_from([["a"], ["b"], ["a", "b"]])),
    st.tuples(st.just("grow"), _topic),
    st.tuples(st.just("drop"), _topic),
    st.tuples(st.just("initialize"), st.integers(0, 3)),
    st.tuples(st.just("move")),
    st.tuples(st.just("advance"), st.sampled_from([100, 1_500, 31_000, 50_000])),
)


class _Run:
    def __init__(self) -> None:
        self.world = ShareWorld(steady_ms=1)
        self.partitions = {"a": 2}
        self.world.topics.create("a", 2)
        self.members = [ShareConsumer(self.world, f"m{number}", ["a", "b"]) for number in range(MEMBERS)]

    def apply(self, event: tuple[object, ...]) -> None:
        world = self.world
        match event:
            case ("heartbeat", int(number), bool(full)):
                self.members[number].heartbeat(full=full)
            case ("lost", int(number)):
                self.members[number].heartbeat(loses_response=True)
            case ("leave", int(number)):
                self.members[number].leave()
            case ("subscribe", int(number), list(topics)):
                self.members[number].topics = topics
                self.members[number].heartbeat(full=True)
            case ("grow", str(topic)):
                self.partitions[topic] = self.partitions.get(topic, 0) + 1
                world.grow(topic, self.partitions[topic])
            case ("drop", str(topic)) if topic in self.partitions:
                del self.partitions[topic]
                world.drop(topic)
            case ("initialize", int(failing)):
                world.initialize(fails=lambda _topic, index: index == failing)
            case ("move",):
                # Answers to requests of the old coordinator are dropped.
                world.move_coordinator()
                world.wanted = []
            case ("advance", int(duration_ms)):
                world.advance(duration_ms)

    def settle(self) -> None:
        for _ in range(8):
            self.world.advance(5_000)
            self.world.initialize()
            for member in self.members:
                member.heartbeat(full=True)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_event, max_size=40))
def test_records_give_the_live_state_and_all_partitions_are_held_in_the_end(
    events: list[tuple[object, ...]],
) -> None:
    run = _Run()
    for event in events:
        run.apply(event)
        assert run.world.groups.replicated_state() == run.world.rebuilt().replicated_state()
    # An initialisation that was sent and lost is repeated after half a minute.
    run.settle()
    run.apply(("grow", "a"))
    run.settle()
    wanted = {
        (topic, index)
        for topic, count in run.partitions.items()
        for index in range(count)
        if any(topic in member.topics for member in run.members)
    }
    assert set().union(*(member.held for member in run.members)) == wanted
    existing = {run.world.topics.id_of(topic) for topic in run.partitions}
    assert run.world.share_group().states.initialized.keys() <= existing
    for member in run.members:
        assert member.heartbeat() is ErrorCode.NONE
        assert {topic for topic, _ in member.held} <= set(member.topics)
