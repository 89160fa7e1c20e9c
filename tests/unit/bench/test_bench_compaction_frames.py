"""The frames of the compaction load against kio, and its keyed batches against its own parser."""

from __future__ import annotations

from bench import compaction_frames as frames
from kio.schema.alter_configs.v0.request import AlterConfigsRequest
from kio.schema.describe_log_dirs.v1.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from tests.unit.bench.test_bench_frames import decoded
from tests.unit.bench.test_bench_group_frames import answered
from tests.wire.batches import parse_batch


def test_a_keyed_batch() -> None:
    batch = parse_batch(frames.keyed_batch([(b"k", b"v"), (b"key", b"value" * 100)]), 0)
    assert [(record.key, record.value) for record in batch.records()] == [
        (b"k", b"v"),
        (b"key", b"value" * 100),
    ]


def test_alter_configs() -> None:
    _, body = decoded(frames.alter_topic_configs("t", {"cleanup.policy": "compact"}), AlterConfigsRequest)
    ((resource),) = body.resources
    assert (resource.resource_type, resource.resource_name, body.validate_only) == (2, "t", False)
    assert [(one.name, one.value) for one in resource.configs] == [("cleanup.policy", "compact")]


def test_the_answer_to_alter_configs() -> None:
    refused = {"error_code": ErrorCode(40), "resource_type": 2, "resource_name": "t"}
    assert frames.alter_error(answered("alter_configs", 0, responses=[refused])) == 40


def test_describe_log_dirs() -> None:
    _, body = decoded(frames.describe_log_dirs("t"), DescribeLogDirsRequest)
    assert [(one.topic, tuple(one.partitions)) for one in body.topics] == [("t", (0,))]


def test_the_size_of_a_log() -> None:
    partition = {"partition_index": 0, "partition_size": 1234, "offset_lag": 0, "is_future_key": False}
    directory = {
        "error_code": ErrorCode(0),
        "log_dir": "/d",
        "topics": [{"name": "t", "partitions": [partition]}],
    }
    assert frames.log_size(answered("describe_log_dirs", 1, results=[directory])) == 1234
