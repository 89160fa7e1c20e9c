"""The quota that applies to a client, and its throttle time."""

from __future__ import annotations

import pytest

from tidemill.security.quotas import (
    CONNECTION_CREATION_RATE,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
    Rate,
    TokenBucket,
    client_quota,
    ip_quotas,
    throttle_ms,
)

# From the weakest to the strongest, as KIP-55 orders them.
LEVELS: tuple[dict[str, str | None], ...] = (
    {"client-id": None},
    {"client-id": "c"},
    {"user": None},
    {"user": None, "client-id": None},
    {"user": None, "client-id": "c"},
    {"user": "u"},
    {"user": "u", "client-id": None},
    {"user": "u", "client-id": "c"},
)


def entity(parts: dict[str, str | None]) -> QuotaEntity:
    return QuotaEntity.of(parts.items())


def test_closest_of_the_eight_levels_counts() -> None:
    quotas: dict[QuotaEntity, dict[str, float]] = {}
    assert client_quota(quotas, PRODUCER_BYTE_RATE, "u", "c") is None
    for limit, level in enumerate(LEVELS, 1):
        quotas[entity(level)] = {PRODUCER_BYTE_RATE: limit}
        found = client_quota(quotas, PRODUCER_BYTE_RATE, "u", "c")
        assert found is not None
        assert found.limit == limit
        assert None not in [name for _, name in found.entity.parts]
        assert [kind for kind, _ in found.entity.parts] == sorted(level)


def test_level_without_the_key_is_passed_over() -> None:
    quotas = {entity({"user": "u"}): {"other": 1.0}, entity({"user": None}): {PRODUCER_BYTE_RATE: 2.0}}
    found = client_quota(quotas, PRODUCER_BYTE_RATE, "u", "c")
    assert found is not None
    assert found == (2.0, entity({"user": "u"}))


def test_address_has_its_own_quota_or_the_default() -> None:
    quotas = {
        entity({"ip": "10.0.0.1"}): {CONNECTION_CREATION_RATE: 5.0},
        entity({"ip": None}): {CONNECTION_CREATION_RATE: 9.0},
    }
    assert ip_quotas(quotas) == {"10.0.0.1": 5, None: 9}
    assert ip_quotas({}) == {}


def test_spellings_of_an_address_share_its_smallest_quota() -> None:
    quotas = {
        entity({"ip": spelled}): {CONNECTION_CREATION_RATE: limit}
        for spelled, limit in (("0:0:0:0:0:0:0:1", 7.0), ("::1", 6.0), ("::ffff:10.0.0.1", 5.0))
    }
    assert ip_quotas(quotas) == {"::1": 6, "10.0.0.1": 5}


def test_first_burst_is_measured_over_ten_seconds() -> None:
    rate = Rate()
    rate.record(20_000, 0)
    assert rate.per_second(0) == 2_000
    # (2,000 - 1,000) / 1,000 of the window of ten seconds.
    assert throttle_ms(rate, 1_000, 0) == 10_000
    assert throttle_ms(rate, 2_000, 0) == 0


def test_client_that_waits_the_throttle_time_is_at_its_quota() -> None:
    rate = Rate()
    steady_ms = 0
    sent = 0
    for _ in range(5_000):
        rate.record(100, steady_ms)
        sent += 100
        steady_ms += throttle_ms(rate, 1_000, steady_ms) + 10
    assert sent / (steady_ms / 1000) == pytest.approx(1_000, rel=0.05)


def test_steady_client_at_its_quota_never_waits() -> None:
    rate = Rate()
    for steady_ms in range(0, 60_000, 100):
        rate.record(100, steady_ms)
        assert throttle_ms(rate, 1_100, steady_ms) == 0


def test_old_samples_do_not_count() -> None:
    rate = Rate()
    rate.record(1_000_000, 0)
    assert rate.per_second(11_000) == 0


@pytest.mark.parametrize("limit", [1.0, 1e-9, 5e-324])
def test_throttle_time_fits_the_field_of_a_response(limit: float) -> None:
    rate = Rate()
    rate.record(3_600_000, 0)
    assert throttle_ms(rate, limit, 0) == 2**31 - 1
    bucket = TokenBucket(limit, 0)
    assert bucket.overdraw(2**31 - 1, 0) == bucket.throttle_ms(0) == 2**31 - 1


def test_bucket_is_overdrawn_once_and_refills() -> None:
    bucket = TokenBucket(10, 0)
    assert bucket.capacity == 110
    assert bucket.take(200, 0) == 0
    assert bucket.tokens(0) == -90
    # Nothing is taken while it is overdrawn.
    assert bucket.take(1, 0) == 9_000
    assert bucket.take(1, 4_000) == 5_000
    assert bucket.take(1, 9_000) == 0
    assert bucket.tokens(1_000_000) == 110


def test_bucket_holds_the_rate_in_the_long_run() -> None:
    bucket = TokenBucket(5, 0)
    taken = sum(1 for steady_ms in range(0, 600_000, 10) if not bucket.take(1, steady_ms))
    assert taken == pytest.approx(5 * 600 + bucket.capacity, abs=2)
