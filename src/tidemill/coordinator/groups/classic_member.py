"""One member of a classic group, with its requests that wait for the other members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.protocol.api.coordinator_records import MemberMetadata
from tidemill.protocol.api.groups import DescribedGroupMember, JoinGroupRequestProtocol


class Waiting(NamedTuple):
    """A request that is answered later. The response depends on its version."""

    token: int
    api_version: int


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    # In the member's order of preference. After a load only the selected protocol is known.
    protocols: Sequence[JoinGroupRequestProtocol]
    assignment: bytes = b""
    waiting_join: Waiting | None = None
    waiting_sync: Waiting | None = None
    # Not in any generation yet.
    is_new: bool = False

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_waiting(self) -> bool:
        return self.waiting_join is not None or self.waiting_sync is not None

    def protocol_names(self) -> list[str]:
        return [protocol.name for protocol in self.protocols]

    def metadata(self, protocol_name: str) -> bytes:
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise AssertionError(f"member {self.member_id} does not support protocol {protocol_name}")

    def has_same_protocols(self, protocols: Sequence[JoinGroupRequestProtocol]) -> bool:
        return list(self.protocols) == list(protocols)

    def vote(self, candidates: set[str]) -> str:
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise AssertionError(f"member {self.member_id} supports none of {sorted(candidates)}")

    def describe(self, protocol_name: str | None) -> DescribedGroupMember:
        """Metadata is shown only under the protocol that the group has settled on."""
        described = DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_assignment=self.assignment,
        )
        if protocol_name is not None:
            described.member_metadata = self.metadata(protocol_name)
        return described

    def to_record(self, protocol_name: str, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


def member_from_record(value: MemberMetadata, protocol_type: str, protocol_name: str | None) -> ClassicMember:
    has_rebalance_timeout = value.rebalance_timeout != -1
    return ClassicMember(
        member_id=value.member_id,
        instance_id=value.group_instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout if has_rebalance_timeout else value.session_timeout,
        session_timeout_ms=value.session_timeout,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=protocol_name or "", metadata=value.subscription)],
        assignment=value.assignment,
    )
