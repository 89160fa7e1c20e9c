"""Opens the log of a partition, and sets aside folders of another topic or partition that had its name."""

from __future__ import annotations

import errno
import logging

from tidemill.broker.platform import Platform
from tidemill.config import TopicConfig
from tidemill.log.datadir import DataDir
from tidemill.log.log import Log
from tidemill.types import TopicPartition, uuid_text

logger = logging.getLogger(__name__)


def open_log(
    platform: Platform,
    data_dir: DataDir,
    tp: TopicPartition,
    topic_id: bytes,
    config: TopicConfig,
    removed_epoch: int,
    first_offset: int,
    *,
    is_whole_checked: bool,
) -> Log:
    """Open or create the log of a partition. `StorageError` and `OSError` are for the caller to handle.

    `removed_epoch` is the last leader epoch of the partition that had this number before; -1 when none had. Its log ended
    at `first_offset`, where the log of this one begins: positions that consumers keep stay right.
    """
    if data_dir.restore_topic_id(tp, topic_id):
        logger.warning(
            "%s/partition.metadata was damaged; it names topic id %s again, as the metadata does",
            data_dir.folder_of(tp),
            uuid_text(topic_id),
        )
    found_id = data_dir.topic_id_of(tp)
    if found_id is not None and found_id != topic_id:
        # The topic was deleted and created again while this broker was away. The folder is of the old one.
        aside = data_dir.set_folder_aside(tp, found_id)
        logger.warning(
            "%s belongs to topic id %s, the metadata says %s; it is set aside as %s",
            data_dir.folder_of(tp),
            uuid_text(found_id),
            uuid_text(topic_id),
            aside,
        )
        found_id = None
    if found_id is None:
        data_dir.create_folder(tp, topic_id, removed_epoch)
    log = _open(platform, data_dir, tp, config, first_offset, is_whole_checked=is_whole_checked)
    if found_id is not None and _is_of_removed(log, removed_epoch, data_dir.removed_epoch_of(tp)):
        # The partition was removed, and another one added under its number, while this broker was away.
        log.release()
        aside = data_dir.set_folder_aside(tp, topic_id)
        logger.warning(
            "%s is of a partition that was removed; it is set aside as %s", data_dir.folder_of(tp), aside
        )
        data_dir.create_folder(tp, topic_id, removed_epoch)
        log = _open(platform, data_dir, tp, config, first_offset, is_whole_checked=is_whole_checked)
    if config.flush_messages == 1 and log.recovery_point < log.log_end_offset:
        _sync(log, platform.clock.wall_ms())
    if log.recovered_bytes_cut:
        logger.warning(
            "%s: cut %d bytes of a torn write, the log now ends at offset %d",
            tp,
            log.recovered_bytes_cut,
            log.log_end_offset,
        )
    return log


def _sync(log: Log, wall_ms: int) -> None:
    """Sync what was written before the broker was killed. Once this broker leads, it counts as committed."""
    work = log.sync_work()
    try:
        work.run()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # It still serves reads; the next sync covers it.
        logger.warning("%s: not synced, the disk is full", log.folder)
        return
    log.synced(work.end_offset, wall_ms)


def _is_of_removed(log: Log, removed_epoch: int, created_under: int) -> bool:
    """Whether a log is of the partition that was removed. An empty one may have no epoch; then its folder decides."""
    latest = log.epochs.latest
    return latest <= removed_epoch and (latest >= 0 or created_under < removed_epoch)


def _open(
    platform: Platform,
    data_dir: DataDir,
    tp: TopicPartition,
    config: TopicConfig,
    first_offset: int,
    *,
    is_whole_checked: bool,
) -> Log:
    return Log(
        platform.files,
        data_dir.folder_of(tp),
        config,
        wall_ms=platform.clock.wall_ms(),
        # A folder that the last run did not open has no recovery point: it may be older than the clean mark.
        is_clean=data_dir.was_clean and tp in data_dir.recovery_points and not is_whole_checked,
        recovery_point=0 if is_whole_checked else data_dir.recovery_points.get(tp, 0),
        log_start_offset=data_dir.log_starts.get(tp),
        first_offset=first_offset,
    )
