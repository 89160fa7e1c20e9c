"""Clients of other languages keep producing and consuming while their topic gets fewer partitions, and more again.

`make interop-java` and `make interop-others` run them. Both courses are those of `shrink_course`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import BOOTSTRAP
from tests.interop import kafka_tools, other_clients
from tests.interop.keyed_producers import METADATA_AGE_MS, OTHER_PRODUCERS, JavaKeyed
from tests.interop.shrink_course import (
    TOPIC,
    Course,
    ProgramMember,
    Reader,
    begin_at_the_earliest,
    run_course,
    scattered_keys,
    unread,
    violations_of,
)

pytestmark = [
    pytest.mark.skipif(bool(BOOTSTRAP), reason="Apache Kafka cannot take partitions away"),
    pytest.mark.long,
]
PROTOCOLS = ("classic", "consumer", "share")


def _java_member(protocol: str) -> Callable[[str], Reader]:
    def start(bootstrap: str) -> Reader:
        group = f"readers-{protocol}"
        if protocol == "share":
            begin_at_the_earliest(bootstrap, group)
        arguments = (bootstrap, TOPIC, "follow", group, str(METADATA_AGE_MS), protocol)
        return ProgramMember(kafka_tools.start_client(*arguments))

    return start


def _other_member(program: other_clients.Program) -> Callable[[str], Reader]:
    def start(bootstrap: str) -> Reader:
        return ProgramMember(
            program.start(bootstrap, TOPIC, "follow", f"readers-{program.name}", str(METADATA_AGE_MS))
        )

    return start


@pytest.fixture(scope="module")
def java_course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    if reason := kafka_tools.missing():
        pytest.skip(reason)
    readers = {protocol: _java_member(protocol) for protocol in PROTOCOLS}
    with run_course(tmp_path_factory.mktemp("fewer") / "data", [JavaKeyed], readers) as course:
        yield course


@pytest.fixture(scope="module")
def others_course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    producers = [kind for kind in OTHER_PRODUCERS if kind.missing() is None]
    if not producers:
        pytest.skip("no client of another language is built: `make interop-others` does it")
    readers = {
        program.name: _other_member(program)
        for program in other_clients.PROGRAMS
        if program.missing() is None
    }
    with run_course(tmp_path_factory.mktemp("fewer") / "data", producers, readers) as course:
        yield course


def test_java_loses_doubles_and_reorders_no_acknowledged_record(java_course: Course) -> None:
    violations = violations_of(java_course, JavaKeyed.name)
    assert not violations, "\n".join(violations[:10])
    assert scattered_keys(java_course, JavaKeyed.name) == set()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_java_reads_the_partitions_that_went_and_those_that_came(protocol: str, java_course: Course) -> None:
    assert unread(java_course, protocol) == set()


@pytest.mark.parametrize("name", [program.name for program in other_clients.PROGRAMS])
def test_other_languages_lose_double_and_reorder_no_acknowledged_record(
    name: str, others_course: Course
) -> None:
    if name not in others_course.sent:
        pytest.skip(f"{name} is not built: `make interop-others` does it")
    violations = violations_of(others_course, name)
    assert not violations, "\n".join(violations[:10])
    assert scattered_keys(others_course, name) == set()


@pytest.mark.parametrize("name", [program.name for program in other_clients.PROGRAMS])
def test_other_languages_read_the_partitions_that_went_and_those_that_came(
    name: str, others_course: Course
) -> None:
    if name not in others_course.received:
        pytest.skip(f"{name} is not built: `make interop-others` does it")
    assert unread(others_course, name) == set()
