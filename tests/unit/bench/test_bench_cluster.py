"""What the cluster benchmarks read from responses, and how they time a failover and judge what came back."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.brokers import Tidemill, tidemill_target
from bench.cluster import metadata
from bench.cluster.failover import History
from bench.cluster.metadata import PartitionState, is_fully_in_sync, is_led
from bench.cluster.nodes import TidemillCluster, on_cluster, with_cluster_target
from bench.connection import RequestFailedError
from kio.schema.describe_quorum.v0.request import DescribeQuorumRequest
from kio.schema.describe_quorum.v0.response import DescribeQuorumResponse
from kio.schema.describe_quorum.v0.response import PartitionData as QuorumPartition
from kio.schema.describe_quorum.v0.response import TopicData as QuorumTopic
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v1.request import ListOffsetsRequest
from kio.schema.list_offsets.v1.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.metadata.v1.request import MetadataRequest
from kio.schema.metadata.v1.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from tests.unit.bench.test_bench_frames import decoded, encoded, of


def test_a_metadata_request_names_its_topics() -> None:
    _, body = decoded(metadata.metadata_request(["a", "bc"]), MetadataRequest)
    assert [topic.name for topic in body.topics] == ["a", "bc"]


def test_a_description_has_brokers_leaders_and_in_sync_replicas() -> None:
    response = of(
        MetadataResponse,
        brokers=(
            of(MetadataResponseBroker, node_id=1, host="a", port=9001, rack=None),
            of(MetadataResponseBroker, node_id=3, host="b", port=9003, rack="r"),
        ),
        controller_id=-1,
        topics=(
            of(
                MetadataResponseTopic,
                error_code=ErrorCode.none,
                name="t",
                is_internal=False,
                partitions=(
                    of(
                        MetadataResponsePartition,
                        error_code=ErrorCode.leader_not_available,
                        partition_index=0,
                        leader_id=-1,
                        replica_nodes=(2,),
                        isr_nodes=(2,),
                    ),
                    of(
                        MetadataResponsePartition,
                        error_code=ErrorCode.none,
                        partition_index=1,
                        leader_id=3,
                        replica_nodes=(1, 2, 3),
                        isr_nodes=(3, 1),
                    ),
                ),
            ),
        ),
    )
    description = metadata.described(encoded(response, is_flexible=False))
    assert description.brokers == {1: "a:9001", 3: "b:9003"}
    assert description.partitions == [
        PartitionState("t", 0, -1, (2,), (2,)),
        PartitionState("t", 1, 3, (1, 2, 3), (3, 1)),
    ]
    assert [is_led(partition) for partition in description.partitions] == [False, True]
    assert not any(map(is_fully_in_sync, description.partitions))
    assert is_fully_in_sync(PartitionState("t", 1, 3, (1, 2, 3), (3, 1, 2)))


def test_end_offsets_are_requested_and_read_by_topic_and_partition() -> None:
    _, body = decoded(metadata.list_offsets_request({"a": [4, 1], "b": [0]}), ListOffsetsRequest)
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in body.topics] == [
        ("a", [4, 1]),
        ("b", [0]),
    ]
    partitions = tuple(
        of(
            ListOffsetsPartitionResponse,
            partition_index=index,
            error_code=error,
            timestamp=-1,
            offset=offset,
        )
        for index, error, offset in ((4, ErrorCode.none, 7), (1, ErrorCode.not_leader_or_follower, -1))
    )
    response = of(
        ListOffsetsResponse, topics=(of(ListOffsetsTopicResponse, name="a", partitions=partitions),)
    )
    assert metadata.end_offsets(encoded(response, is_flexible=False)) == {
        ("a", 4): (0, 7),
        ("a", 1): (6, -1),
    }


def test_active_controller_is_requested_and_read() -> None:
    _, body = decoded(metadata.quorum_leader_request(), DescribeQuorumRequest)
    assert [(t.topic_name, [p.partition_index for p in t.partitions]) for t in body.topics] == [
        ("__cluster_metadata", [0])
    ]
    partition = of(
        QuorumPartition,
        partition_index=0,
        error_code=ErrorCode.none,
        leader_id=3,
        leader_epoch=7,
        high_watermark=1,
        current_voters=(),
        observers=(),
    )
    topic = of(QuorumTopic, topic_name="__cluster_metadata", partitions=(partition,))
    answer = of(DescribeQuorumResponse, error_code=ErrorCode.none, topics=(topic,))
    assert metadata.described_quorum_leader(encoded(answer, is_flexible=True)) == 3
    refused = of(DescribeQuorumResponse, error_code=ErrorCode.not_controller, topics=())
    with pytest.raises(RequestFailedError, match="41"):
        metadata.described_quorum_leader(encoded(refused, is_flexible=True))


def test_a_failover_ends_with_the_first_ack_of_a_message_sent_to_the_partition_after_the_kill() -> None:
    # Numbers 0 to 6 go to partitions 0, 1, 2, 0, 1, 2, 0.
    history = History(sent_s=[1.0, 1.1, 1.2, 2.0, 2.1, 3.0, 3.1])
    assert history.first_ack_after(2.5, 0) is None
    history.acks = [(0, 1.3), (1, 1.4), (3, 9.0), (5, 9.1)]
    assert history.first_ack_after(2.5, 0) is None
    assert history.first_ack_after(2.5, 2) == 9.1
    history.acks.append((6, 9.5))
    assert history.first_ack_after(2.5, 0) == 9.5
    assert history.last_ack_before(2.5, 0) == 1.3


@pytest.mark.parametrize(
    ("found", "lost", "repeated"),
    [
        ([[0, 3], [1], [2]], 0, 0),
        ([[0, 3, 6], [1], [2]], 0, 0),
        ([[0], [1], [2]], 1, 0),
        ([[0, 3], [1, 1], [2]], 0, 1),
        ([[3, 0], [1], [2]], 0, 1),
    ],
)
def test_stored_messages_are_compared_with_acknowledged_ones(
    found: list[list[int]], lost: int, repeated: int
) -> None:
    history = History(sent_s=[0.0] * 7, acks=[(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)])
    assert history.compared_with(found) == (lost, repeated)


def test_a_cluster_is_three_properties_files_that_name_each_other(tmp_path: Path) -> None:
    cluster = TidemillCluster(tmp_path, {"broker.session.timeout.ms": "2000"})
    cluster.prepare()
    files = [
        dict(line.split("=", 1) for line in node.config_path.read_text().splitlines())
        for node in cluster.nodes
    ]
    assert [file["node.id"] for file in files] == ["1", "2", "3"]
    assert len({file["log.dirs"] for file in files}) == len({file["listeners"] for file in files}) == 3
    (voters,) = {file["controller.quorum.voters"] for file in files}
    assert [voter.partition("@")[0] for voter in voters.split(",")] == ["1", "2", "3"]
    assert {file["broker.session.timeout.ms"] for file in files} == {"2000"}


def test_a_case_of_the_cluster_refuses_a_single_broker(tmp_path: Path) -> None:
    with pytest.raises(RequestFailedError, match="needs a cluster"):
        on_cluster(lambda _: {})(Tidemill(tmp_path))
    with pytest.raises(RequestFailedError, match="needs a cluster"):
        with_cluster_target(lambda _, __: {})(tidemill_target(), tmp_path)
