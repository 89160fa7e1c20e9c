"""The rules of the simulated disk: which data is durable, which may be lost, and when it stops."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tidemill.log.files import FolderInUse
from tidemill.sim.platform.disk import SimulatedDisk, Step, Stopped, every_cut_point


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(page_bytes=8)
    disk.make_folder("/d")
    disk.sync_folder("/")
    return disk


def _write(disk: SimulatedDisk, path: str, content: bytes, *, sync: bool = False) -> None:
    file = disk.open(path, create=True)
    file.write(content, 0)
    if sync:
        file.sync()
        disk.sync_folder("/d")


def test_a_power_failure_takes_what_was_not_synced_and_a_kill_does_not(disk: SimulatedDisk) -> None:
    _write(disk, "/d/kept", b"old", sync=True)
    _write(disk, "/d/kept", b"newer")
    _write(disk, "/d/lost", b"x")
    assert disk.kill().contents() == {"/d/kept": b"newer", "/d/lost": b"x"}
    assert disk.crash(Random(0), keep="everything").contents() == {"/d/kept": b"newer", "/d/lost": b"x"}
    assert disk.crash(Random(0), keep="nothing").contents() == {"/d/kept": b"old"}


def test_power_failure_after_kill_may_lose_unsynced_data(disk: SimulatedDisk) -> None:
    _write(disk, "/d/f", b"old", sync=True)
    _write(disk, "/d/f", b"new")
    assert disk.kill().crash(Random(0), keep="nothing").contents() == {"/d/f": b"old"}


def test_synced_content_needs_a_synced_name(disk: SimulatedDisk) -> None:
    disk.open("/d/f", create=True).sync()
    assert disk.crash(Random(0), keep="nothing").contents() == {}


def test_some_crashes_lose_keep_and_tear_and_never_touch_what_was_synced(disk: SimulatedDisk) -> None:
    _write(disk, "/d/f", b"synced", sync=True)
    disk.open("/d/f").write(b"0123456789", 6)
    found = {disk.crash(Random(seed)).contents()["/d/f"] for seed in range(300)}
    assert all(content.startswith(b"synced") for content in found)
    assert {b"synced", b"synced0123456789", b"synced012", b"synced01" + bytes(8)} <= found
    assert len(found) > 15


def test_the_names_of_a_folder_survive_in_their_order(disk: SimulatedDisk) -> None:
    _write(disk, "/d/a", b"1", sync=True)
    disk.rename("/d/a", "/d/b")
    _write(disk, "/d/c", b"2")
    disk.remove("/d/b")
    found = {tuple(disk.crash(Random(seed)).list("/d")) for seed in range(100)}
    assert found == {("a",), ("b",), ("b", "c"), ("c",)}


def test_replace_is_atomic_and_durable(disk: SimulatedDisk) -> None:
    disk.replace("/d/f", b"one")
    disk.replace("/d/f", b"two")
    assert disk.crash(Random(0), keep="nothing").contents() == {"/d/f": b"two"}


def test_the_same_seed_gives_the_same_disk(disk: SimulatedDisk) -> None:
    for number in range(20):
        _write(disk, f"/d/{number}", b"content" * number)
    assert disk.crash(Random(5)).contents() == disk.crash(Random(5)).contents()


def test_a_map_is_durable_when_flushed_and_a_mix_of_pages_before(disk: SimulatedDisk) -> None:
    window = disk.map("/d/m", 24)
    disk.sync_folder("/d")
    memoryview(window)[:3] = b"abc"
    window.flush()
    assert disk.crash(Random(0), keep="nothing").contents()["/d/m"] == b"abc" + bytes(21)
    memoryview(window)[8:24] = b"x" * 16
    found = {SimulatedDisk.crash(disk, Random(seed)).contents()["/d/m"] for seed in range(100)}
    assert b"abc" + bytes(5) + b"x" * 8 + bytes(8) in found
    assert b"abc" + bytes(13) + b"x" * 8 in found
    window.close()
    assert disk.size("/d/m") == 24
    with pytest.raises(ValueError, match="closed"):
        window[0]


def test_a_full_disk_writes_what_fits_and_then_fails(disk: SimulatedDisk) -> None:
    file = disk.open("/d/f", create=True)
    disk.free_bytes = 4
    with pytest.raises(OSError, match="No space left") as raised:
        file.write(b"0123456789", 0)
    assert raised.value.errno == errno.ENOSPC
    assert disk.read("/d/f") == b"0123"
    file.truncate(0)
    file.write(b"abcd", 0)
    assert disk.free_bytes == 0


def test_faults_hit_what_they_match_as_often_as_they_should(disk: SimulatedDisk) -> None:
    _write(disk, "/d/a.log", b"1")
    disk.fail("read", "sync", pattern="*.log", times=1)
    file = disk.open("/d/a.log")
    with pytest.raises(OSError, match="Input/output"):
        file.read(1, 0)
    assert file.read(1, 0) == b"1"
    disk.flip_bit("/d/a.log", 0, 1)
    assert file.read(1, 0) == b"3"


def test_locks_end_with_the_process(disk: SimulatedDisk) -> None:
    disk.lock("/d/.lock", "pid 1")
    with pytest.raises(FolderInUse):
        disk.lock("/d/.lock", "pid 2")
    disk.kill().lock("/d/.lock", "pid 2")


def test_dead_process_changes_nothing(disk: SimulatedDisk) -> None:
    file = disk.open("/d/f", create=True)
    disk.kill()
    with pytest.raises(Stopped):
        file.write(b"x", 0)


def test_every_cut_point_is_every_step_and_every_byte_of_the_last_write() -> None:
    def scenario(disk: SimulatedDisk, history: list[str]) -> None:
        disk.make_folder("/d")
        file = disk.open("/d/f", create=True)
        file.write(b"abc", 0)
        history.append("written")
        file.sync()
        file.write(b"de", 3)

    cuts = list(every_cut_point(scenario, list))
    assert [cut.step for cut in cuts] == [
        None,
        Step("make_folder", "/d"),
        Step("create", "/d/f"),
        Step("write", "/d/f", 3),
        Step("sync", "/d/f"),
        Step("write", "/d/f", 2),
        Step("write", "/d/f", 2),
    ]
    found = [cut.disk.kill().contents().get("/d/f") for cut in cuts]
    assert found == [b"abcde", None, None, b"", b"abc", b"abc", b"abcd"]
    assert [cut.history for cut in cuts] == [["written"], [], [], [], ["written"], ["written"], ["written"]]
