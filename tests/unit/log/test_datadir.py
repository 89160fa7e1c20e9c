"""A data directory: its lock, its identity and its folders."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidemill.errors import StorageError
from tidemill.log.datadir import DataDir, Identity
from tidemill.log.files import DiskFiles
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import TopicPartition

TP, OTHER = TopicPartition("some.topic-x", 3), TopicPartition("other", 0)
ID = bytes(range(16))
ME = Identity("cluster", 1, "directory")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def test_the_second_broker_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    first = DataDir(DiskFiles(), str(tmp_path / "data"), 4711)
    with pytest.raises(StorageError, match=r"in use by another broker \(pid 4711\)"):
        DataDir(DiskFiles(), str(tmp_path / "data"), 4712)
    first.unlock()
    DataDir(DiskFiles(), str(tmp_path / "data"), 4713).unlock()


def test_the_second_is_refused_on_a_simulated_disk_too(disk: SimulatedDisk) -> None:
    DataDir(disk, "/data", 1)
    with pytest.raises(StorageError, match="pid 1"):
        DataDir(disk, "/data", 2)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot use the data directory .*file/data"):
        DataDir(DiskFiles(), str(tmp_path / "file" / "data"), 1)


def test_relative_data_dir_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DataDir(DiskFiles(), "data", 1).unlock()
    assert os.path.isdir(tmp_path / "data")


def test_an_identity_is_kept_and_another_refused(disk: SimulatedDisk) -> None:
    data_dir = DataDir(disk, "/data", 1)
    assert data_dir.identity() is None
    data_dir.claim(ME)
    assert data_dir.identity() == ME
    data_dir.claim(ME)
    with pytest.raises(
        StorageError, match="belongs to node 1 of cluster cluster, not to node 2 of cluster cluster"
    ):
        data_dir.claim(Identity("cluster", 2, "directory"))
    with pytest.raises(StorageError, match="not to node 1 of cluster theirs"):
        data_dir.claim(Identity("theirs", 1, "directory"))
    assert data_dir.identity() == ME


@pytest.mark.parametrize(
    "content", [b"", b"node.id=x\ncluster.id=c\ndirectory.id=d\n", b"cluster.id=c\n", b"\xff\xfe\xfd"]
)
def test_a_damaged_identity_is_refused(disk: SimulatedDisk, content: bytes) -> None:
    data_dir = DataDir(disk, "/data", 1)
    disk.replace("/data/meta.properties", content)
    with pytest.raises(StorageError, match=r"meta\.properties is damaged"):
        data_dir.identity()


def test_checkpoints_are_kafkas_files(disk: SimulatedDisk) -> None:
    DataDir(disk, "/data", 1).write_checkpoints({TP: 17, OTHER: 0}, {TP: 5})
    assert disk.read("/data/recovery-point-offset-checkpoint") == b"0\n2\nsome.topic-x 3 17\nother 0 0\n"
    assert disk.read("/data/log-start-offset-checkpoint") == b"0\n1\nsome.topic-x 3 5\n"
    again = DataDir(disk.kill(), "/data", 2)
    assert again.recovery_points == {TP: 17, OTHER: 0}
    assert again.log_starts == {TP: 5}


@pytest.mark.parametrize(
    "content", [b"", b"1\n0\n", b"0\n2\nt 0 1\n", b"0\n1\nt 0\n", b"0\n1\nt x 1\n", b"0\nx\n", b"\xff\xfe"]
)
def test_a_damaged_checkpoint_is_refused_and_the_lock_released(disk: SimulatedDisk, content: bytes) -> None:
    DataDir(disk, "/data", 1).unlock()
    disk.replace("/data/recovery-point-offset-checkpoint", content)
    for _ in range(2):
        with pytest.raises(StorageError, match="recovery-point-offset-checkpoint is damaged"):
            DataDir(disk, "/data", 1)


def test_the_clean_mark_holds_until_the_next_start(disk: SimulatedDisk) -> None:
    data_dir = DataDir(disk, "/data", 1)
    assert not data_dir.was_clean
    assert data_dir.clean_broker_epoch == -1
    data_dir.mark_clean(17)
    data_dir.unlock()
    data_dir = DataDir(disk, "/data", 1)
    assert data_dir.was_clean
    assert data_dir.clean_broker_epoch == 17
    data_dir.mark_in_use()
    data_dir.unlock()
    data_dir = DataDir(disk, "/data", 1)
    assert not data_dir.was_clean
    assert data_dir.clean_broker_epoch == -1


def test_a_directory_gets_its_cluster_id_later_and_keeps_it(disk: SimulatedDisk) -> None:
    data_dir = DataDir(disk, "/data", 1)
    data_dir.claim(Identity(None, 7, "dir"))
    assert data_dir.identity() == Identity(None, 7, "dir")
    data_dir.claim(Identity("cluster-a", 7, "dir"))
    data_dir.claim(Identity(None, 7, "dir"))
    assert data_dir.identity() == Identity("cluster-a", 7, "dir")
    with pytest.raises(
        StorageError, match=r"node 7 of cluster cluster-a, not to node 7 of cluster cluster-b"
    ):
        data_dir.claim(Identity("cluster-b", 7, "dir"))
    with pytest.raises(StorageError, match="node 7 of cluster cluster-a, not to node 8"):
        data_dir.claim(Identity("cluster-a", 8, "dir"))


def test_partition_metadata_is_kafkas_file(disk: SimulatedDisk) -> None:
    data_dir = DataDir(disk, "/data", 1)
    assert data_dir.topic_id_of(TP) is None
    folder = data_dir.create_folder(TP, ID)
    assert folder == "/data/some.topic-x-3"
    assert disk.read(f"{folder}/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert data_dir.topic_id_of(TP) == ID


@pytest.mark.parametrize("content", [b"version: 0\ntopic_id: short\n", b"version: 0\nid\n", b"\xff" * 40])
def test_metadata_that_names_no_topic_is_damage(disk: SimulatedDisk, content: bytes) -> None:
    data_dir = DataDir(disk, "/data", 1)
    data_dir.create_folder(TP, ID)
    disk.replace("/data/some.topic-x-3/partition.metadata", content)
    with pytest.raises(StorageError, match=r"partition.metadata is damaged"):
        data_dir.topic_id_of(TP)


@pytest.mark.parametrize("length", range(43))
@pytest.mark.parametrize("zeros", [0, 20])
def test_metadata_that_was_never_synced_may_be_torn(disk: SimulatedDisk, length: int, zeros: int) -> None:
    data_dir = DataDir(disk, "/data", 1)
    path = f"{data_dir.create_folder(TP, ID)}/partition.metadata"
    disk.replace(path, disk.read(path)[:length] + bytes(zeros))
    assert data_dir.topic_id_of(TP) is None
    data_dir.create_folder(TP, ID)
    assert data_dir.topic_id_of(TP) == ID


def test_failure_21_a_recreated_topic_does_not_inherit_checkpoints(disk: SimulatedDisk) -> None:
    data_dir = DataDir(disk, "/data", 1)
    data_dir.create_folder(TP, ID)
    data_dir.write_checkpoints({TP: 17, OTHER: 9}, {TP: 5, OTHER: 2})
    disk.remove(data_dir.mark_folder_deleted(TP, ID))
    data_dir.create_folder(TP, ID[::-1])
    again = DataDir(disk.kill(), "/data", 1)
    assert again.recovery_points == {OTHER: 9}
    assert again.log_starts == {OTHER: 2}


def test_failure_21_what_was_read_at_the_start_does_not_outlive_a_newer_checkpoint(
    disk: SimulatedDisk,
) -> None:
    """The folder was gone at the start, so the checkpoints written since do not name the partition."""
    disk_before = DataDir(disk, "/data", 1)
    disk_before.write_checkpoints({TP: 17, OTHER: 9}, {TP: 5, OTHER: 2})
    disk_before.write_high_watermarks({TP: 17})
    data_dir = DataDir(disk.kill(), "/data", 1)
    data_dir.write_checkpoints({OTHER: 9}, {OTHER: 2})
    data_dir.create_folder(TP, ID)
    assert TP not in {**data_dir.recovery_points, **data_dir.log_starts, **data_dir.high_watermarks}


def test_folder_names_the_removed_epoch_under_which_it_was_created(disk: SimulatedDisk) -> None:
    data_dir = DataDir(disk, "/data", 1)
    path = f"{data_dir.create_folder(TP, ID, 4)}/partition.metadata"
    assert (data_dir.topic_id_of(TP), data_dir.removed_epoch_of(TP)) == (ID, 4)
    damaged = bytearray(disk.read(path))
    damaged[25] ^= 1
    disk.replace(path, bytes(damaged))
    assert data_dir.restore_topic_id(TP, ID)
    assert (data_dir.topic_id_of(TP), data_dir.removed_epoch_of(TP)) == (ID, 4)
    data_dir.create_folder(OTHER, ID)
    assert data_dir.removed_epoch_of(OTHER) == -1


def test_failure_21_a_checkpoint_that_is_written_late_does_not_bring_them_back(disk: SimulatedDisk) -> None:
    """A thread was about to write when the topic was deleted and made again."""
    data_dir = DataDir(disk, "/data", 1)
    data_dir.create_folder(TP, ID)
    data_dir.note_checkpoints({TP: 17, OTHER: 9}, {TP: 5, OTHER: 2})
    disk.remove(data_dir.mark_folder_deleted(TP, ID))
    data_dir.create_folder(TP, ID[::-1])
    data_dir.write_noted_checkpoints()
    again = DataDir(disk.kill(), "/data", 1)
    assert again.recovery_points == {OTHER: 9}
    assert again.log_starts == {OTHER: 2}


def test_checkpoints_are_written_while_topics_are_made_again(tmp_path: Path) -> None:
    files = DiskFiles()
    data_dir = DataDir(files, str(tmp_path / "data"), 1)
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            data_dir.write_noted_checkpoints()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for number in range(100):
                data_dir.create_folder(TP, ID)
                data_dir.note_checkpoints({TP: number, OTHER: number}, {TP: number, OTHER: number})
                files.remove(data_dir.mark_folder_deleted(TP, ID))
                assert not writing.done()
        finally:
            is_over.set()
        writing.result()
    data_dir.write_noted_checkpoints()
    data_dir.unlock()
    again = DataDir(files, str(tmp_path / "data"), 1)
    assert again.recovery_points == again.log_starts == {TP: 99, OTHER: 99}


def test_a_deleted_folder_frees_its_name_and_is_found_again(disk: SimulatedDisk) -> None:
    data_dir = DataDir(disk, "/data", 1)
    long_name = TopicPartition("n" * 249, 0)
    for tp in (TP, long_name):
        data_dir.create_folder(tp, ID)
        renamed = data_dir.mark_folder_deleted(tp, ID)
        assert len(renamed.rpartition("/")[2]) <= 255
        assert data_dir.topic_id_of(tp) is None
        assert renamed in DataDir(disk.kill(), "/data", 1).deleted_folders()
        disk = data_dir._files.kill()  # type: ignore[attr-defined]
        data_dir = DataDir(disk, "/data", 1)


def test_a_folder_that_is_deleted_twice_has_two_names(disk: SimulatedDisk) -> None:
    """The files of the first folder, which may be half removed, are not mixed with those of the second."""
    data_dir = DataDir(disk, "/data", 1)
    renamed = []
    for _ in range(3):
        data_dir.create_folder(TP, ID)
        renamed.append(data_dir.mark_folder_deleted(TP, ID))
    assert len(set(renamed)) == 3
    assert sorted(data_dir.deleted_folders()) == sorted(renamed)
