"""Stock clients keep producing and consuming while their topic gets fewer partitions, and more again (decision 18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import BOOTSTRAP
from tests.interop.confluent_group import ConfluentConsumer, ConfluentNewConsumer
from tests.interop.group_consumers import GroupConsumer, MemberSettings
from tests.interop.group_table import KINDS
from tests.interop.kafka_python_group import KafkaPythonConsumer
from tests.interop.kcat_client import KcatClient
from tests.interop.keyed_producers import METADATA_AGE_MS, PRODUCERS, KeyedProducer
from tests.interop.members import Member
from tests.interop.shrink_course import (
    TOPIC,
    VIEW,
    Course,
    KcatMember,
    Reader,
    Readers,
    ShareMember,
    run_course,
    scattered_keys,
    unread,
    violations_of,
)

pytestmark = pytest.mark.skipif(bool(BOOTSTRAP), reason="Apache Kafka cannot take partitions away")


def _member_of(kind: type[GroupConsumer], topic: str) -> Callable[[str], Reader]:
    settings = MemberSettings(
        f"{topic}-{kind.name}",
        topics=(topic,),
        auto_commit_ms=200,
        # kafka-python computes all the time while its metadata is so short-lived.
        metadata_max_age_ms=(4 if kind is KafkaPythonConsumer else 1) * METADATA_AGE_MS,
    )
    return lambda bootstrap: Member(kind, bootstrap, settings)


READERS: Readers = {
    **{kind.name: _member_of(kind, TOPIC) for kind in KINDS},
    **{f"{kind.name}, view": _member_of(kind, VIEW) for kind in (ConfluentConsumer, ConfluentNewConsumer)},
    "share group": ShareMember,
    "kcat": KcatMember,
}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    producers = [kind for kind in PRODUCERS if kind.missing() is None]
    readers = {name: make for name, make in READERS.items() if name != "kcat" or KcatClient.missing() is None}
    with run_course(tmp_path_factory.mktemp("fewer") / "data", producers, readers) as course:
        yield course


@pytest.mark.parametrize("kind", PRODUCERS, ids=lambda kind: kind.name)
def test_no_acknowledged_record_is_lost_doubled_or_out_of_order_per_key(
    kind: type[KeyedProducer], course: Course
) -> None:
    if reason := kind.missing():
        pytest.skip(reason)
    violations = violations_of(course, kind.name)
    assert not violations, "\n".join(violations[:10])


@pytest.mark.parametrize("kind", PRODUCERS, ids=lambda kind: kind.name)
def test_a_key_stays_in_one_partition_through_a_shrink(kind: type[KeyedProducer], course: Course) -> None:
    if reason := kind.missing():
        pytest.skip(reason)
    assert scattered_keys(course, kind.name) == set()


@pytest.mark.parametrize("name", READERS)
def test_every_group_reads_the_partitions_that_went_and_those_that_came(name: str, course: Course) -> None:
    if name not in course.received:
        pytest.skip("kcat is not installed: apt-get install kcat")
    assert unread(course, name) == set()
