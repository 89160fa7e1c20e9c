"""A broker whose disk is full, under load: the others go on, and with room again it catches up and nothing is torn.

The disk is a small tmpfs, which only root may mount. A file that fills it stands for whatever filled it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import eventually
from tests.cluster.clusters import QUICK_FENCING, Cluster
from tests.cluster.workload import Workload
from tests.conftest import BOOTSTRAP

DISK_BYTES = 64 << 20
LEFT_BYTES = 64 << 10
FULL = 3


def _missing() -> str | None:
    if BOOTSTRAP:
        return "TIDEMILL_INTEROP_BOOTSTRAP names a broker that is not ours"
    if sys.platform != "linux":
        return "mounts a tmpfs, which exists on Linux only"
    if os.geteuid() != 0:
        return "mounts a tmpfs, which needs root: run as root, or with sudo -E"
    if shutil.which("mount") is None:
        return "mounts a tmpfs: install mount (util-linux)"
    return None


pytestmark = pytest.mark.skipif(_missing() is not None, reason=_missing() or "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small-disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tidemill-test", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"may not mount a tmpfs ({mounted.stderr.strip()}): run with CAP_SYS_ADMIN")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _fill(filler: Path) -> None:
    room = os.statvfs(filler.parent)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - LEFT_BYTES)


@pytest.mark.long
def test_full_disk_serves_no_torn_batch_and_broker_recovers(small_disk: Path, tmp_path: Path) -> None:
    """Failure 27: a torn batch is never served, and the broker recovers as soon as there is room."""
    settings = {**QUICK_FENCING, "replica.lag.time.max.ms": "3000"}
    with (
        Cluster(3, tmp_path, settings=settings, data_dirs={FULL: small_disk / "data"}) as cluster,
        Workload(cluster, "full-disk", with_aiokafka=False) as work,
    ):
        filler = small_disk / "filler"
        _fill(filler)

        def is_out_of_sync() -> bool:
            states = [
                cluster.state(work.topic, each, cluster.others(FULL)) for each in range(work.partitions)
            ]
            return any(state is not None and FULL not in state.isr for state in states)

        eventually(is_out_of_sync, "the broker with the full disk falls behind", 60)
        elsewhere = [
            partition
            for partition in range(work.partitions)
            if cluster.leader_of(work.topic, partition, cluster.others(FULL)) != FULL
        ]
        work.await_acks(elsewhere)
        filler.unlink()
        # Whether it waited for room or gave up.
        cluster.restart_if_ended(FULL)
        cluster.await_up()
        work.await_progress()
        work.finish()
