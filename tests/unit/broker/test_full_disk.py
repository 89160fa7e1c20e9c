"""Failure 27: a disk that has no room for a checkpoint is waited for; what it holds is not lost with it."""

from __future__ import annotations

import errno
from collections.abc import Callable

from tests.unit.broker.replica_world import World, produce, produced
from tidemill.errors import ErrorCode

MakeWorld = Callable[..., World]
_RETRY_S = 1.0


def test_epoch_that_cannot_be_written_fences_nothing(make_world: MakeWorld) -> None:
    world = make_world(brokers=1)
    world.start()
    world.create_topic([1], flush_messages="1")
    world.settle()
    host = world[1]
    host.disk.fail("replace", pattern="*/leader-epoch-checkpoint", error=errno.ENOSPC)
    answer = produce(world, 1, b"kept")
    world.until(lambda: answer.is_there, "an answer")
    assert produced(answer).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert host.partition().log is not None
    assert host.high_watermark == 0
    host.disk.heal()
    # There are no more writes, and yet what stands in the log is synced and shown.
    world.settle(_RETRY_S)
    assert host.high_watermark == 1
    assert host.values() == [b"kept"]
