"""Registration of a broker while the controller refuses it, and the file of its last registration."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidemill.broker.quorum.lifecycle import LastRegistration, Lifecycle
from tidemill.config import load_broker_config
from tidemill.errors import ApiError, ConfigError, ErrorCode
from tidemill.log.datadir import Identity
from tidemill.sim.platform.disk import SimulatedDisk


class Refusing:
    """A controller in this very process, whose disk is full: it answers before anybody else gets a turn."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, _request: object, *, timeout_s: float) -> None:
        self.asked += 1
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device")


async def test_a_refusal_that_comes_at_once_does_not_hold_up_the_loop() -> None:
    config, _ = load_broker_config({"initial.broker.registration.timeout.ms": "500"})
    driver = Refusing()
    lifecycle = Lifecycle(config, cast("Any", driver), lambda: bytes(16), lambda _: None)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.02)
            turns += 1

    counting = asyncio.create_task(count_turns())
    with pytest.raises(ConfigError, match="No space left on device"):
        await lifecycle.register(Identity("cluster", 1, "AAAAAAAAAAAAAAAAAAAAAA"), [], -1)
    counting.cancel()
    assert 2 <= driver.asked <= 6
    assert turns >= 5


def _disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_folder("/data")
    disk.sync_folder("/")
    return disk


def test_a_registration_is_remembered_for_one_boot_of_the_machine() -> None:
    disk = _disk()
    assert LastRegistration(disk, "/data", "boot 1").epoch() == -1
    LastRegistration(disk, "/data", "boot 1").remember(17)
    assert LastRegistration(disk, "/data", "boot 1").epoch() == 17
    assert LastRegistration(disk, "/data", "boot 2").epoch() == -1
    assert LastRegistration(disk, "/data", None).epoch() == -1


def test_a_registration_of_an_unknown_boot_proves_nothing() -> None:
    disk = _disk()
    LastRegistration(disk, "/data", None).remember(17)
    assert LastRegistration(disk, "/data", None).epoch() == -1


def test_a_registration_is_forgotten_when_the_disk_failed() -> None:
    disk = _disk()
    registration = LastRegistration(disk, "/data", "boot 1")
    registration.forget()
    registration.remember(17)
    registration.forget()
    assert registration.epoch() == -1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"brokerEpoch": "x", "bootId": "boot 1"}'])
def test_a_damaged_registration_proves_nothing(content: bytes) -> None:
    disk = _disk()
    disk.replace("/data/.tidemill_registration", content)
    assert LastRegistration(disk, "/data", "boot 1").epoch() == -1


def test_a_registration_that_cannot_be_written_leaves_the_older_one(caplog: pytest.LogCaptureFixture) -> None:
    """Which names an epoch that the controller has replaced."""
    disk = _disk()
    registration = LastRegistration(disk, "/data", "boot 1")
    registration.remember(17)
    disk.free_bytes = 0
    registration.remember(18)
    assert registration.epoch() == 17
    assert "cannot write" in caplog.text
