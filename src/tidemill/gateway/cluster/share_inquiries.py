"""Requests the facts of share groups: members and offsets from their coordinator, what is in flight from the leaders.

As in `inquiries`, what a broker does not say is left out. A broker of Apache Kafka does not know what is in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.client.admin.share_groups import (
    SHARE,
    ShareGroupAdmin,
    ShareGroupDescription,
    SharePosition,
    share_description,
    share_positions,
)
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Connection
from tidemill.gateway.cluster.facts import GroupFact, ShareFact
from tidemill.protocol.api.groups import ListedGroup
from tidemill.protocol.api.share import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


def is_share_group(listed: ListedGroup) -> bool:
    return listed.group_type.lower() == SHARE


def share_facts(
    cluster: Cluster, coordinator: Connection, broker_id: int, listed: Sequence[ListedGroup]
) -> Iterator[GroupFact]:
    """Yields the facts of share groups that this broker coordinates."""
    names = [group.group_id for group in listed]
    described = _describe(coordinator, names) if names else {}
    positions = _positions(coordinator, names) if names else {}
    in_flight = ShareGroupAdmin(cluster).in_flight_of(
        {name: [each.partition for each in found] for name, found in positions.items()}
    )
    for group in listed:
        known = described.get(group.group_id)
        counts = in_flight.get(group.group_id, {})
        yield GroupFact(
            group.group_id,
            known.state if known else group.group_state,
            SHARE,
            broker_id,
            known.members if known else (),
            {},
            {
                each.partition: ShareFact(each.start_offset, each.lag, counts.get(each.partition))
                for each in positions.get(group.group_id, ())
            },
        )


def _describe(coordinator: Connection, names: list[str]) -> dict[str, ShareGroupDescription]:
    response = coordinator.request(ShareGroupDescribeRequest(group_ids=names), ShareGroupDescribeResponse)
    return {each.group_id: share_description(each) for each in response.groups if not each.error_code}


def _positions(coordinator: Connection, names: list[str]) -> dict[str, list[SharePosition]]:
    message = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=each, topics=None) for each in names]
    )
    response = coordinator.request(message, DescribeShareGroupOffsetsResponse)
    return {each.group_id: share_positions(each) for each in response.groups if not each.error_code}
