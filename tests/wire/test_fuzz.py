"""A few seconds of the fuzzer (`make fuzz` runs it for longer), and what it relies on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from tests.brokers import KEEPS_EVERYTHING, Broker, eventually
from tests.wire.connection import Connection
from tests.wire.fuzz.campaign import QUICK_GROUPS, Campaign, Size
from tests.wire.fuzz.frames import FrameMaker
from tests.wire.fuzz.schemas import all_apis
from tests.wire.fuzz.values import Pools
from tests.wire.fuzz.watchdog import Watchdog, target_of_broker
from tests.wire.messages import API_KEYS

SEED = 20_260
FRAMES = 4_000
SETTINGS = {**KEEPS_EVERYTHING, **QUICK_GROUPS}


def test_some_thousand_frames_of_all_apis_do_no_harm(start: Callable[..., Broker]) -> None:
    target = target_of_broker(start(SETTINGS))
    campaign = Campaign(target, SEED, frames_max=FRAMES, size=Size(connections=8, conversations=1))
    findings = campaign.run()
    assert not findings, "\n\n".join(map(str, findings))
    assert campaign.ledger.done >= FRAMES


@pytest.mark.parametrize("name", sorted(API_KEYS))
def test_kio_reads_back_what_the_fuzzer_calls_valid(name: str) -> None:
    # By name, since every worker collects this test, and to read all schemas takes it two seconds.
    maker = FrameMaker(SEED, Pools())
    versions = [api for api in all_apis() if api.name == name]
    assert versions
    for api in versions:
        read = entity_reader(load_request_schema(api.key, api.version))
        for number in range(3):
            body = maker.valid_body(api, random.Random(number))
            _, size = read(body, 0)
            assert size == len(body), f"version {api.version}"


def test_a_frame_is_a_function_of_its_seed_and_number() -> None:
    pools = Pools(cluster_id="c", topic_ids={"fuzz-plain": bytes(16)})
    first, again, other = FrameMaker(1, pools), FrameMaker(1, pools), FrameMaker(2, pools)
    # Batches and searches by time carry the time of day.
    frames = [first.frame(number) for number in range(300)]
    same = [again.frame(number) for number in range(300)]
    timeless = [
        pair
        for pair in zip(frames, same, strict=True)
        if pair[0].api not in ("produce", "list_offsets", "envelope")
    ]
    assert all(one == two for one, two in timeless)
    assert frames != [other.frame(number) for number in range(300)]


def test_the_watchdog_reports_a_broker_that_ended(start: Callable[..., Broker]) -> None:
    broker = start()
    with Watchdog(target_of_broker(broker)) as watchdog:
        broker.kill()
        # Ended here, so that the innocent client need not wait for its limit.
        watchdog.give_up()
        found = eventually(watchdog.look, "a finding")
    assert "ended with -9" in found[0].what


def test_the_watchdog_reports_a_log_entry_with_its_traceback(start: Callable[..., Broker]) -> None:
    broker = start()
    entry = "2026-01-01T00:00:00.000Z ERROR   tidemill: Fetch of 127.0.0.1:1 failed\n"
    entry += "Traceback (most recent call last):\n  somewhere\n"
    with Watchdog(target_of_broker(broker)) as watchdog:
        with Path(broker.log_path).open("a") as log:
            log.write(entry)
        (finding,) = watchdog.look()
    assert finding.detail == entry.rstrip()


def test_the_watchdog_reports_memory_above_its_bound(start: Callable[..., Broker]) -> None:
    with Watchdog(target_of_broker(start()), rss_bytes_max=1_000_000) as watchdog:
        (finding,) = watchdog.look()
    assert "holds" in finding.what
    assert watchdog.innocent["failure"] is None


def test_the_watchdog_reports_round_trips_above_their_bound(start: Callable[..., Broker]) -> None:
    with Watchdog(target_of_broker(start()), p99_ms_max=0.0) as watchdog:
        pass
    (finding,) = watchdog.findings
    assert "p99 of the worst ten seconds is not below 0 ms" in finding.what


def test_an_innocent_client_makes_its_round_trips(start: Callable[..., Broker]) -> None:
    broker = start()
    with Watchdog(target_of_broker(broker)) as watchdog, Connection(broker) as connection:
        eventually(lambda: connection.end_offset("innocent") > 5, "records of the innocent client")
    assert watchdog.findings == []
    assert watchdog.innocent["round_trips"] > 5
