"""ACLs, SCRAM credentials and client quotas as the controller decides about them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.cluster import Cluster, creatable
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from tidemill.protocol.api.security import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidemill.protocol.schema import Request
from tidemill.security.quotas import QuotaEntity
from tidemill.security.scram import ScramClient, ScramMechanism, ScramServer, salted_password


def creation(name: str = "orders", **fields: Any) -> AclCreation:
    given: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": name,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return AclCreation(**(given | fields))


def everything(**fields: Any) -> DeleteAclsFilter:
    given: dict[str, Any] = {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    return DeleteAclsFilter(**(given | fields))


def test_rule_is_created_once() -> None:
    cluster = Cluster()
    before = len(cluster.log)
    reply = cluster.ask(CreateAclsRequest(creations=[creation(), creation()]))
    assert [result.error_code for result in reply.results] == [0, 0]
    cluster.ask(CreateAclsRequest(creations=[creation()]))
    assert len(cluster.log) == before + 1
    (binding,) = cluster.image.security.acls.values()
    assert str(binding) == "ALLOW User:alice from * to READ TOPIC:LITERAL:orders"


def test_entry_that_is_wrong_does_not_stop_the_others() -> None:
    cluster = Cluster()
    wrong = creation(principal="alice")
    reply = cluster.ask(CreateAclsRequest(creations=[wrong, creation()]))
    assert [result.error_code for result in reply.results] == [ErrorCode.INVALID_REQUEST, 0]
    assert len(cluster.image.security.acls) == 1


def test_filters_remove_what_they_match_and_say_so() -> None:
    cluster = Cluster()
    names = ("orders", "orders-eu", "other")
    cluster.ask(CreateAclsRequest(creations=[creation(name) for name in names]))
    by_match = everything(resource_type_filter=2, resource_name_filter="orders", pattern_type_filter=2)
    reply = cluster.ask(DeleteAclsRequest(filters=[by_match, by_match, everything(operation=0)]))
    assert [[acl.resource_name for acl in each.matching_acls] for each in reply.filter_results] == [
        ["orders"],
        ["orders"],
        [],
    ]
    assert reply.filter_results[2].error_code == ErrorCode.INVALID_REQUEST
    assert {acl.resource_name for acl in cluster.image.security.acls.values()} == {"orders-eu", "other"}


def test_image_without_a_change_keeps_the_same_rules() -> None:
    cluster = Cluster()
    cluster.ask(CreateAclsRequest(creations=[creation()]))
    acls = cluster.image.security.acls
    cluster.create(creatable("topic"))
    assert cluster.image.security.acls is acls


def upsertion(**fields: Any) -> ScramCredentialUpsertion:
    given: dict[str, Any] = {
        "name": "alice",
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": salted_password(ScramMechanism.SHA_256, "secret", b"salt", 4096),
    }
    return ScramCredentialUpsertion(**(given | fields))


def test_credential_lets_its_user_in() -> None:
    cluster = Cluster()
    reply = cluster.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion()]))
    assert [(result.user, result.error_code) for result in reply.results] == [("alice", 0)]
    security = cluster.image.security
    server = ScramServer(
        ScramMechanism.SHA_256,
        lambda user: security.scram_credential(ScramMechanism.SHA_256, user),
        nonce="s",
        decoy_key=b"",
    )
    client = ScramClient(ScramMechanism.SHA_256, "alice", "secret", nonce="c")
    final = client.answer(server.respond(client.first(), 0))
    assert final is not None
    assert client.answer(server.respond(final, 0)) is None
    assert not any(b"secret" in repr(record).encode() for record in cluster.log)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_credential_that_is_weak_or_unknown_is_refused(change: dict[str, Any], code: ErrorCode) -> None:
    cluster = Cluster()
    reply = cluster.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion(**change)]))
    assert [result.error_code for result in reply.results] == [code]
    assert not cluster.image.security.scram_credentials


def test_changes_of_one_user_stand_or_fall_together() -> None:
    cluster = Cluster()
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="alice", mechanism=2)],
        upsertions=[upsertion(), upsertion(name="bob")],
    )
    reply = cluster.ask(request)
    codes = {result.user: result.error_code for result in reply.results}
    assert codes == {"alice": ErrorCode.RESOURCE_NOT_FOUND, "bob": 0}
    assert set(cluster.image.security.scram_credentials) == {("bob", 1)}
    twice = cluster.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion(), upsertion()]))
    assert [result.error_code for result in twice.results] == [ErrorCode.DUPLICATE_RESOURCE]


def test_credential_is_deleted() -> None:
    cluster = Cluster()
    cluster.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion()]))
    deletion = ScramCredentialDeletion(name="alice", mechanism=1)
    assert cluster.ask(AlterUserScramCredentialsRequest(deletions=[deletion])).results[0].error_code == 0
    assert not cluster.image.security.scram_credentials


def alter_quota(cluster: Cluster, entity: dict[str, str | None], **values: float | None) -> tuple[int, str]:
    entry = AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[OpData(key=key, value=value or 0, remove=value is None) for key, value in values.items()],
    )
    (result,) = cluster.ask(AlterClientQuotasRequest(entries=[entry])).entries
    return result.error_code, result.error_message or ""


def test_quota_may_be_the_largest_long_which_a_double_holds_as_the_next_number() -> None:
    cluster = Cluster()
    named: dict[str, str | None] = {"user": "alice"}
    assert alter_quota(cluster, named, producer_byte_rate=float(2**63 - 1)) == (0, "")
    _, message = alter_quota(cluster, named, producer_byte_rate=float(2**63 + 2**11))
    assert "too large for a LONG" in message
    assert cluster.image.security.client_quotas[QuotaEntity.of(named.items())] == {
        "producer_byte_rate": 2.0**63
    }


def test_quota_is_set_changed_and_removed() -> None:
    cluster = Cluster()
    entity = QuotaEntity.of([("user", "alice"), ("client-id", None)])
    named = {"user": "alice", "client-id": None}
    assert alter_quota(cluster, named, producer_byte_rate=1000, request_percentage=12.5) == (0, "")
    assert cluster.image.security.client_quotas == {
        entity: {"producer_byte_rate": 1000.0, "request_percentage": 12.5}
    }
    written = len(cluster.log)
    alter_quota(cluster, named, producer_byte_rate=1000, consumer_byte_rate=None)
    assert len(cluster.log) == written
    alter_quota(cluster, named, producer_byte_rate=None, request_percentage=None)
    assert not cluster.image.security.client_quotas


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        ({}, "producer_byte_rate", 1, "empty client quota entity"),
        ({"group": "x"}, "producer_byte_rate", 1, "Unhandled client quota entity type: group"),
        ({"user": ""}, "producer_byte_rate", 1, "Empty user not supported"),
        ({"user": "a", "ip": "10.0.0.1"}, "producer_byte_rate", 1, "IP entity should not be used"),
        ({"ip": "10.0.0"}, "connection_creation_rate", 1, "not a valid IP"),
        ({"ip": "10.0.0.1"}, "producer_byte_rate", 1, "Invalid configuration key"),
        ({"user": "a"}, "connection_creation_rate", 1, "Invalid configuration key"),
        ({"user": "a"}, "no_such_rate", 1, "Invalid configuration key no_such_rate"),
        ({"user": "a"}, "producer_byte_rate", 0, "must be greater than 0"),
        ({"user": "a"}, "producer_byte_rate", -5, "must be greater than 0"),
        ({"user": "a"}, "producer_byte_rate", float("nan"), "must be greater than 0"),
        ({"user": "a"}, "producer_byte_rate", 1.5, "cannot be a fractional value"),
        ({"user": "a"}, "producer_byte_rate", 1e30, "too large for a LONG"),
        ({"ip": None}, "connection_creation_rate", 1e10, "too large for an INT"),
    ],
)
def test_quota_that_cannot_be_is_refused(
    entity: dict[str, str | None], key: str, value: float, message: str
) -> None:
    cluster = Cluster()
    entry = AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[OpData(key=key, value=value)],
    )
    (result,) = cluster.ask(AlterClientQuotasRequest(entries=[entry])).entries
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert message in result.error_message
    assert not cluster.image.security.client_quotas


def test_validation_alone_writes_nothing() -> None:
    cluster = Cluster()
    entry = AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type="user", entity_name="a")],
        ops=[OpData(key="producer_byte_rate", value=7)],
    )
    cluster.ask(AlterClientQuotasRequest(entries=[entry], validate_only=True))
    assert not cluster.image.security.client_quotas


TOO_MANY = [f"n{number}" for number in range(10_001)]


@pytest.mark.parametrize(
    "request_",
    [
        CreateAclsRequest(creations=[creation(name) for name in TOO_MANY]),
        AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name=name,
                    mechanism=ScramMechanism.SHA_256,
                    iterations=4096,
                    salt=b"salt",
                    salted_password=b"p" * 32,
                )
                for name in TOO_MANY
            ]
        ),
    ],
    ids=lambda request: type(request).__name__,
)
def test_request_that_would_write_too_many_records_writes_none(request_: Request) -> None:
    cluster = Cluster()
    before = len(cluster.log)
    reply = cluster.ask(request_)
    assert [result.error_code for result in reply.results] == [ErrorCode.POLICY_VIOLATION] * len(TOO_MANY)
    assert len(cluster.log) == before


def test_removal_of_too_many_rules_removes_none() -> None:
    cluster = Cluster()
    for names in (TOO_MANY[:5_000], TOO_MANY[5_000:]):
        cluster.ask(CreateAclsRequest(creations=[creation(name) for name in names]))
    reply = cluster.ask(DeleteAclsRequest(filters=[everything(), everything(resource_name_filter="n7")]))
    assert [result.error_code for result in reply.filter_results] == [ErrorCode.POLICY_VIOLATION] * 2
    assert len(cluster.image.security.acls) == len(TOO_MANY)
