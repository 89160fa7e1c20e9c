"""Error responses of every API and version: each entry of the request has the error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.property.message_samples import Sampler
from tidemill.protocol import api as apis
from tidemill.protocol.api.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
)
from tidemill.protocol.api.cluster import MetadataRequest, MetadataRequestTopic
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.protocol.api.replicas import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tidemill.protocol.api.security import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidemill.protocol.declarations import ArrayOf, Kind, Primitive, Struct
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.schema import decode_exact, encode

CODE = 35


class Pairs(Sampler):
    """Two of everything, and nothing null."""

    def field(self, spec: Any, version: int) -> object:
        return self.value(spec.kind, version)

    def value(self, kind: Kind, version: int) -> object:
        if isinstance(kind, ArrayOf):
            return [self.value(kind.element, version) for _ in range(2)]
        return self.primitive(kind) if isinstance(kind, Primitive) else self.message(kind, version)


def codes(struct: Struct) -> Iterator[int]:
    for name in struct.__struct_defaults__:
        value = getattr(struct, name)
        if name in ("error_code", "partition_error_code"):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                yield from codes(each)


@pytest.mark.parametrize("api_key", apis.APIS, ids=[api.name for api in apis.APIS.values()])
def test_every_api_has_an_error_response_in_every_version(api_key: int) -> None:
    request_type, response_type = apis.REQUESTS[api_key], apis.RESPONSES[api_key]
    for version in range(request_type.versions.min, request_type.versions.max + 1):
        request = Pairs(version).message(request_type, version)
        response = error_response(request, version, CODE, "why")
        assert response is not None
        told = list(codes(decode_exact(response_type, version, encode(response, version))))
        assert CODE in told
        assert set(told) <= {CODE, 0}


def test_each_partition_of_a_commit_gets_the_error() -> None:
    request = OffsetCommitRequest(
        topics=[
            OffsetCommitRequestTopic(
                name=name, partitions=[OffsetCommitRequestPartition(partition_index=n) for n in (0, 7)]
            )
            for name in ("a", "b")
        ]
    )
    response: Any = error_response(request, 3, CODE, None)
    assert [
        (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in response.topics
    ] == [("a", [(0, CODE), (7, CODE)]), ("b", [(0, CODE), (7, CODE)])]


def test_entries_of_several_lists_and_of_nested_ones() -> None:
    scram: Any = error_response(
        AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name="old")],
            upsertions=[ScramCredentialUpsertion(name="new")],
        ),
        0,
        CODE,
        "why",
    )
    assert [(each.user, each.error_code, each.error_message) for each in scram.results] == [
        ("old", CODE, "why"),
        ("new", CODE, "why"),
    ]
    moved: Any = error_response(
        AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=path, partitions=[1, 2])])
                for path in ("x", "y")
            ]
        ),
        2,
        CODE,
        "why",
    )
    assert [
        (each.topic_name, [part.partition_index for part in each.partitions]) for each in moved.results
    ] == [("x", [1, 2]), ("y", [1, 2])]
    entity = [EntityData(entity_type="user", entity_name=None)]
    quotas: Any = error_response(
        AlterClientQuotasRequest(entries=[AlterClientQuotasRequestEntryData(entity=entity)]), 1, CODE, "why"
    )
    assert quotas.entries[0].entity == entity


def test_a_name_that_may_not_be_null_is_empty() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=b"i" * 16)])
    response: Any = error_response(request, 11, CODE, "why")
    assert encode(response, 11)
    assert (response.topics[0].name, response.topics[0].topic_id) == ("", b"i" * 16)


def test_request_without_entries_has_no_error_response() -> None:
    assert error_response(MetadataRequest(topics=None), 12, CODE, "why") is None
    assert error_response(OffsetCommitRequest(), 3, CODE, "why") is None
