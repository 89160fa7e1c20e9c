"""The `quorum-state` file: the epoch, its leader, and for whom this replica voted in it.

Kafka's own JSON. It is replaced before anything that relies on it leaves this node, so a vote once given is never
given to another candidate. A file that cannot be read is refused: guessing would be a second vote. What could not be
read back is not written.
"""

from __future__ import annotations

import json

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.protocol.schema import NO_UUID
from tidemill.raft.effects import ElectionState
from tidemill.raft.messages import NOBODY
from tidemill.raft.state import EPOCH_END
from tidemill.raft.voters import ReplicaKey
from tidemill.types import uuid_bytes, uuid_text

_FILE_NAME = "quorum-state"


class QuorumStateFile:
    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = f"{folder}/{_FILE_NAME}"

    def read(self) -> ElectionState:
        if not self._files.exists(self._path):
            return ElectionState()
        try:
            fields = json.loads(self._files.read(self._path))
            leader_id, voted_id = int(fields["leaderId"]), int(fields["votedId"])
            directory_id = fields.get("votedDirectoryId")
            voted = ReplicaKey(voted_id, uuid_bytes(directory_id) if directory_id else NO_UUID)
            epoch = int(fields["leaderEpoch"])
            if not 0 <= epoch < EPOCH_END:
                raise ValueError(f"epoch {epoch} has no successor")
            return ElectionState(
                epoch,
                None if leader_id < 0 else leader_id,
                None if voted_id < 0 else voted,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{self._path} is damaged ({error!r}): it is unknown how this node voted. Remove the whole "
                "folder if other nodes have the metadata; this node then starts as a new replica"
            ) from error

    def write(self, state: ElectionState) -> None:
        if not 0 <= state.epoch < EPOCH_END:
            raise StorageError(f"epoch {state.epoch} cannot be written down: no epoch can follow it")
        voted = state.voted or ReplicaKey(NOBODY)
        fields = {
            "leaderId": NOBODY if state.leader_id is None else state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": voted.id,
            "votedDirectoryId": uuid_text(voted.directory_id),
            "data_version": 1,
        }
        self._files.replace(self._path, json.dumps(fields, separators=(",", ":")).encode())
