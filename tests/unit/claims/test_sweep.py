"""Which objects the sweep removes. Each test is one way to lose a payload."""

from __future__ import annotations

from tidemill.claims.claim import Claim
from tidemill.claims.sweep import OWNER_KEY, Standing, Sweep
from tidemill.objects.store import ObjectInfo

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# 2023-11-15T00:00:00Z
DATE_END_MS = 1_700_006_400_000
MORNING_MS = DATE_END_MS - 23 * HOUR_MS
SHA = "ab" * 32
KEY = f"orders/2023-11-14/{SHA}"
MORNING = ObjectInfo(KEY, 5, MORNING_MS)


def sweep_at(wall_ms: int, *, deleted_topics: bool = False) -> Sweep:
    return Sweep(topics={"orders", "copies"}, wall_ms=wall_ms, deleted_topics=deleted_topics)


def claim_for(sha: str, uri: str = f"s3://bucket/{KEY}") -> Claim:
    return Claim(uri, 5, sha)


def test_object_that_no_record_refers_to_is_removed() -> None:
    sweep = sweep_at(DATE_END_MS + DAY_MS)
    assert sweep.consider(MORNING) is Standing.CANDIDATE
    assert sweep.removable == [MORNING]


def test_object_that_a_record_refers_to_stays() -> None:
    sweep = sweep_at(DATE_END_MS + DAY_MS)
    sweep.consider(MORNING)
    sweep.refer(claim_for(SHA).headers())
    assert sweep.removable == []


def test_reference_to_another_object_protects_nothing_else() -> None:
    sweep = sweep_at(DATE_END_MS + DAY_MS)
    sweep.consider(MORNING)
    sweep.refer(claim_for("cd" * 32, f"s3://bucket/orders/2023-11-14/{'cd' * 32}").headers())
    assert sweep.removable == [MORNING]


def test_grace_begins_at_the_end_of_the_date_since_a_producer_of_that_day_may_use_the_object_again() -> None:
    # A day after the put, and an hour after the last moment in which a producer could find the object there.
    assert sweep_at(DATE_END_MS + HOUR_MS).consider(MORNING) is Standing.IN_GRACE
    assert sweep_at(DATE_END_MS + DAY_MS - 1).consider(MORNING) is Standing.IN_GRACE
    assert sweep_at(DATE_END_MS + DAY_MS).consider(MORNING) is Standing.CANDIDATE


def test_grace_begins_when_the_object_was_written_by_a_producer_whose_clock_is_behind() -> None:
    late = MORNING._replace(modified_ms=DATE_END_MS + 2 * DAY_MS)
    assert sweep_at(DATE_END_MS + 3 * DAY_MS - 1).consider(late) is Standing.IN_GRACE
    assert sweep_at(DATE_END_MS + 3 * DAY_MS).consider(late) is Standing.CANDIDATE


def test_same_payload_under_several_dates_and_topics_is_protected_by_one_reference() -> None:
    other = ObjectInfo(f"copies/2023-11-13/{SHA}", 5, MORNING_MS)
    sweep = sweep_at(DATE_END_MS + DAY_MS)
    sweep.consider(MORNING)
    sweep.consider(other)
    assert sweep.removable == [other, MORNING]
    sweep.refer(claim_for(SHA).headers())
    assert sweep.removable == []


def test_reference_under_another_name_of_the_store_or_with_broken_headers_counts() -> None:
    for headers in (
        claim_for(SHA, f"file:///mnt/elsewhere/{KEY}").headers(),
        [("tidemill-claim-sha256", SHA)],
        [("tidemill-claim-uri", f"s3://bucket/{KEY}".encode()), ("tidemill-claim-size", b"?")],
    ):
        sweep = sweep_at(DATE_END_MS + DAY_MS)
        sweep.consider(MORNING)
        sweep.refer(headers)
        assert sweep.removable == []


def test_reference_that_is_no_hash_is_passed_over() -> None:
    sweep = sweep_at(DATE_END_MS + DAY_MS)
    sweep.consider(MORNING)
    sweep.refer(
        [("tidemill-claim-uri", b"\xff" * 64), ("tidemill-claim-sha256", None), ("other", SHA.encode())]
    )
    assert sweep.removable == [MORNING]


def test_objects_of_topics_that_the_user_does_not_see_stay_unless_they_are_named_as_deleted() -> None:
    hidden = ObjectInfo(f"secret/2023-11-14/{SHA}", 5, MORNING_MS)
    assert sweep_at(DATE_END_MS + DAY_MS).consider(hidden) is Standing.UNKNOWN_TOPIC
    sweep = sweep_at(DATE_END_MS + DAY_MS, deleted_topics=True)
    assert sweep.consider(hidden) is Standing.CANDIDATE
    assert sweep.removable == [hidden]


def test_foreign_objects_are_never_removed() -> None:
    sweep = sweep_at(DATE_END_MS + 1000 * DAY_MS, deleted_topics=True)
    for key in (OWNER_KEY, "orders/readme.txt", f"orders/2023-11-14/x/{SHA}", f"../2023-11-14/{SHA}"):
        assert sweep.consider(ObjectInfo(key, 1, 0)) is Standing.FOREIGN
    assert sweep.removable == []


def test_leftover_of_an_interrupted_write_is_removed_when_its_grace_is_over() -> None:
    leftover = ObjectInfo(f"orders/2023-11-14/.{SHA}.0123456789abcdef.partial", 3, MORNING_MS)
    assert sweep_at(MORNING_MS + DAY_MS - 1).consider(leftover) is Standing.IN_GRACE
    sweep = sweep_at(MORNING_MS + DAY_MS)
    assert sweep.consider(leftover) is Standing.CANDIDATE
    assert sweep.removable == [leftover]


def test_file_of_another_program_that_is_named_as_a_partial_one_stays() -> None:
    sweep = sweep_at(DATE_END_MS + 9 * DAY_MS)
    for key in (
        "downloads/film.partial",
        "backup.partial",
        ".notes.0123456789abcdef.partial",
        f"orders/2023-11-14/.{SHA}.partial",
        f"{KEY}.partial",
    ):
        assert sweep.consider(ObjectInfo(key, 5, MORNING_MS)) is Standing.FOREIGN
    assert sweep.removable == []


def test_owner_that_was_not_written_to_its_end_is_removed() -> None:
    sweep = sweep_at(DATE_END_MS + 9 * DAY_MS)
    leftover = ObjectInfo(f".{OWNER_KEY}.0123456789abcdef.partial", 0, MORNING_MS)
    assert sweep.consider(leftover) is Standing.CANDIDATE
