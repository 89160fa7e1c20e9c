"""What a log has on disk when its partition is opened."""

from __future__ import annotations

import errno
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.log.batches import T0, append
from tidemill.broker.partitions.upkeep.opening import open_log
from tidemill.config import TopicConfig
from tidemill.log.datadir import DataDir
from tidemill.log.log import Log
from tidemill.protocol.records import Record, build_batch
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import TopicPartition

TP = TopicPartition("orders", 0)
TOPIC_ID = bytes(range(16))
DATA = "/data"


def _open(disk: SimulatedDisk, flush_messages: int, start: int) -> Log:
    platform = SimpleNamespace(files=disk, clock=SimpleNamespace(wall_ms=lambda: T0))
    data_dir = DataDir(disk, DATA, start)
    data_dir.mark_in_use()
    config = TopicConfig(flush_messages=flush_messages)
    return open_log(cast(Any, platform), data_dir, TP, TOPIC_ID, config, -1, 0, is_whole_checked=False)


def _killed_before_a_sync(flush_messages: int) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_folder(DATA)
    disk.sync_folder("/")
    log = _open(disk, flush_messages, 1)
    work = log.sync_work()
    work.run()
    log.synced(work.end_offset, T0)
    append(log, build_batch([Record(0, T0, b"k", b"v")]))
    return disk.kill()


@pytest.mark.parametrize(("flush_messages", "kept"), [(1, 1), (2**63 - 1, 0)])
def test_failure_03_what_a_killed_broker_finds_again_survives_a_power_failure_after_it(
    flush_messages: int, kept: int
) -> None:
    """Found by seed 101259: it counted as committed, and repeated batches in it were acknowledged, without a sync."""
    disk = _killed_before_a_sync(flush_messages)
    log = _open(disk, flush_messages, 2)
    assert log.log_end_offset == 1
    after = disk.crash(Random(0), keep="nothing")
    assert _open(after, flush_messages, 3).log_end_offset == kept


def test_full_disk_does_not_keep_a_killed_broker_from_its_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = _killed_before_a_sync(1)
    disk.fail("sync", pattern="*.log", error=errno.ENOSPC)
    assert _open(disk, 1, 2).log_end_offset == 1
    assert "not synced" in caplog.text
