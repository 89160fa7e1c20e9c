"""The controller's shell on a single node: its log, its commits, and the image that the broker follows.

A decision's records are appended as one batch and replayed at once, so that the next decision sees them; the reply and
the new image go out when the batch is synced. An append that fails leaves nothing behind, and the caller hears
KAFKA_STORAGE_ERROR. A sync that fails leaves the machine ahead of its log, which nothing but a restart can mend: the node
stops.

The log is `__cluster_metadata-0`, in Kafka's record formats. Now and then the image is written as a snapshot
(`<offset>-<epoch>.checkpoint`) and the log before it is dropped, so that a start replays what exists, not all that ever
happened. A quorum will take the place of "appended and synced"; nothing above this module will notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tidemill.broker.clock import Clock
from tidemill.broker.syncer import Syncer
from tidemill.config import TopicConfig
from tidemill.controller.controller import Controller
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.controller.records import Record, decode_record, encode_record, image_records
from tidemill.errors import ApiError, ErrorCode, ProtocolError, StorageError
from tidemill.log.files import Files
from tidemill.log.log import Log
from tidemill.machine import Decision
from tidemill.protocol import records as batches
from tidemill.protocol.records import build_batch, checksum_matches, header_at, iterate_records

logger = logging.getLogger(__name__)

METADATA_FOLDER = "__cluster_metadata-0"
_LEADER_EPOCH = 1
_SNAPSHOT_AFTER_RECORDS = 20_000
_SNAPSHOT_SUFFIX = ".checkpoint"
_BATCH_RECORDS_MAX = 1_000

ReplyT = TypeVar("ReplyT")


class ControllerDriver:
    def __init__(
        self,
        controller: Controller,
        files: Files,
        folder: str,
        syncer: Syncer,
        clock: Clock,
        *,
        is_clean: bool,
        recovery_point: int,
        on_change: Callable[[MetadataDelta, MetadataImage], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._controller = controller
        self._files = files
        self._folder = folder
        self._syncer = syncer
        self._clock = clock
        self._on_change = on_change
        self._on_fatal = on_fatal
        files.make_folder(folder)
        snapshot_offset = self._load_snapshot()
        self.log = Log(
            files,
            folder,
            TopicConfig(),
            now_ms=clock.now_ms(),
            is_clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=snapshot_offset,
        )
        self._records_since_snapshot = 0
        self._replay_log(snapshot_offset)
        self.image = controller.image

    # -- starting --------------------------------------------------------------------------------------------

    def _replay_log(self, start_offset: int) -> None:
        for segment in self.log.segments:
            for _, header, batch in segment.batches():
                if header.last_offset < start_offset:
                    continue
                for record in iterate_records(batch, header):
                    self._replay(record.value, record.offset)

    def _replay(self, value: bytes | None, offset: int) -> None:
        try:
            self._controller.replay(decode_record(value or b""), offset)
        except (ProtocolError, ValueError, KeyError, AssertionError) as error:
            raise StorageError(
                f"{self._folder}: the metadata record at offset {offset} is damaged: {error}"
            ) from error
        self._records_since_snapshot += 1

    def _load_snapshot(self) -> int:
        """Replay the newest snapshot, if there is one; the offset at which the log goes on."""
        self._records_since_snapshot = 0
        names = [name for name in self._files.list(self._folder) if name.endswith(_SNAPSHOT_SUFFIX)]
        if not names:
            return 0
        name = names[-1]
        end_offset = int(name.partition("-")[0])
        content = memoryview(self._files.read(f"{self._folder}/{name}"))
        position = 0
        while position < len(content):
            header = header_at(content, position)
            batch = content[position : position + header.size]
            if len(batch) < header.size or not checksum_matches(batch, header):
                raise StorageError(f"{self._folder}/{name} is damaged; restore it from a backup")
            for record in iterate_records(batch, header):
                # A snapshot has no offsets of its own: all of it lies before its end.
                self._replay(record.value, end_offset - 1)
            position += header.size
        return end_offset

    def write_snapshot_if_due(self) -> None:
        """At start only: the image is at rest and nobody waits yet."""
        if self._records_since_snapshot < _SNAPSHOT_AFTER_RECORDS:
            return
        values = [encode_record(record) for record in image_records(self.image)]
        if self._records_since_snapshot < 2 * len(values):
            return
        end_offset = self.log.log_end_offset
        content = bytearray()
        for start in range(0, len(values), _BATCH_RECORDS_MAX):
            content += self._batch(values[start : start + _BATCH_RECORDS_MAX], start)
        path = f"{self._folder}/{end_offset:020d}-{_LEADER_EPOCH:010d}{_SNAPSHOT_SUFFIX}"
        self._files.replace(path, bytes(content))
        self.log.roll(self._clock.now_ms())
        for doomed in self.log.move_start(end_offset):
            self._files.remove(doomed)
        for name in self._files.list(self._folder):
            if name.endswith(_SNAPSHOT_SUFFIX) and f"{self._folder}/{name}" != path:
                self._files.remove(f"{self._folder}/{name}")

    # -- deciding --------------------------------------------------------------------------------------------

    async def submit(self, decide: Callable[[Controller], Decision[Record, ReplyT]]) -> ReplyT:
        """The reply, once the decision's records are durable and the broker follows them."""
        decision = decide(self._controller)
        if not decision.records:
            return decision.reply
        base_offset = self.log.log_end_offset
        batch = self._batch([encode_record(record) for record in decision.records], base_offset)
        try:
            self.log.append(memoryview(batch), (header_at(batch),), _LEADER_EPOCH, self._clock.now_ms())
        except OSError as error:
            message = f"cannot write the metadata log: {error.strerror or error}"
            logger.error("%s", message)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        for number, record in enumerate(decision.records):
            self._controller.replay(record, base_offset + number)
        try:
            await self._syncer.sync_now(self.log)
        except OSError as error:
            self._on_fatal(f"cannot sync the metadata log: {error.strerror or error}")
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._publish(decision.records, base_offset)
        return decision.reply

    def _publish(self, records: object, base_offset: int) -> None:
        """Commits arrive in the order of the log, since one round of the syncer answers in that order."""
        assert isinstance(records, list | tuple)
        delta = MetadataDelta(self.image)
        for number, record in enumerate(records):
            delta.replay(record, base_offset + number)
        self.image = delta.apply()
        self._on_change(delta, self.image)

    def _batch(self, values: list[bytes], base_offset: int) -> bytearray:
        now_ms = self._clock.now_ms()
        return build_batch(
            (
                batches.Record(base_offset + number, now_ms, None, value)
                for number, value in enumerate(values)
            ),
            base_offset=base_offset,
            leader_epoch=_LEADER_EPOCH,
        )

    def close(self) -> None:
        self.log.close()
