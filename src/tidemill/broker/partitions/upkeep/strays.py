"""Folders of partitions that were deleted or moved while this broker was away: they are set aside, never removed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidemill.errors import StorageError
from tidemill.internal_topics import METADATA_TOPIC
from tidemill.log.datadir import DataDir
from tidemill.types import NO_TOPIC_ID, TopicPartition

logger = logging.getLogger(__name__)


def set_strays_aside(data_dir: DataDir, is_hosted: Callable[[TopicPartition], bool]) -> None:
    for tp in data_dir.partition_folders():
        if tp.topic == METADATA_TOPIC or is_hosted(tp):
            continue
        try:
            aside = data_dir.set_folder_aside(tp, data_dir.topic_id_of(tp) or NO_TOPIC_ID)
        except (StorageError, OSError) as error:
            logger.warning("%s is not of this broker any more, and stays: %s", data_dir.folder_of(tp), error)
        else:
            logger.warning(
                "%s is not of this broker any more; it is set aside as %s and can be removed",
                data_dir.folder_of(tp),
                aside,
            )
