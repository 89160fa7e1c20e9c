"""Reads and changes SCRAM users, ACLs and client quotas through the Kafka protocol.

Passwords never leave this process: a broker receives a salt and the salted password (KIP-554). Requests go to the broker
that Metadata names as controller; any broker passes them on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence

from tidemill.client.cluster import Cluster, check
from tidemill.protocol.acls import creation_of, deletion_of
from tidemill.protocol.api.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)
from tidemill.protocol.api.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidemill.security.acls import AclBinding, AclFilter
from tidemill.security.quotas import QuotaEntity
from tidemill.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism, salted_password

# Each user's mechanisms, with the iterations of each.
ScramUsers = dict[str, dict[ScramMechanism, int]]


class SecurityAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    # --- SCRAM users ---

    def users(self) -> ScramUsers:
        """Every user with a SCRAM credential in the metadata, by name."""

        def attempt() -> ScramUsers:
            response = self.cluster.controller().request(
                DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse
            )
            check(response.error_code, response.error_message)
            return {
                each.user: {ScramMechanism(info.mechanism): info.iterations for info in each.credential_infos}
                for each in sorted(response.results, key=lambda result: result.user)
            }

        return self.cluster.retrying(attempt)

    def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[ScramMechanism],
        iterations: int = ITERATIONS_MIN,
    ) -> list[str]:
        """Add the user, or replace its password. Each mechanism gets a salt of its own. Returns remarks of the broker."""
        upsertions = []
        for mechanism in mechanisms:
            salt = secrets.token_bytes(SALT_BYTES)
            salted = salted_password(mechanism, password, salt, iterations)
            upsertions.append(
                ScramCredentialUpsertion(
                    name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
                )
            )
        return self._alter_users(AlterUserScramCredentialsRequest(upsertions=upsertions))

    def remove_user(self, user: str, mechanisms: Iterable[ScramMechanism]) -> None:
        deletions = [ScramCredentialDeletion(name=user, mechanism=each) for each in mechanisms]
        self._alter_users(AlterUserScramCredentialsRequest(deletions=deletions), is_repeatable=False)

    def _alter_users(
        self, message: AlterUserScramCredentialsRequest, *, is_repeatable: bool = True
    ) -> list[str]:
        def attempt() -> list[str]:
            response = self.cluster.controller().request(message, AlterUserScramCredentialsResponse)
            for result in response.results:
                check(result.error_code, result.error_message)
            return [result.error_message for result in response.results if result.error_message]

        return self.cluster.retrying(attempt, is_repeatable=is_repeatable)

    # --- ACLs ---

    def acls(self, wanted: AclFilter) -> list[AclBinding]:
        message = DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.resource_name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )

        def attempt() -> list[AclBinding]:
            response = self.cluster.controller().request(message, DescribeAclsResponse)
            check(response.error_code, response.error_message)
            return sorted(
                AclBinding(
                    resource.resource_type,
                    resource.resource_name,
                    resource.pattern_type,
                    each.principal,
                    each.host,
                    each.operation,
                    each.permission_type,
                )
                for resource in response.resources
                for each in resource.acls
            )

        return self.cluster.retrying(attempt)

    def create_acls(self, bindings: Iterable[AclBinding]) -> None:
        """Creating one that exists changes nothing."""
        message = CreateAclsRequest(creations=[creation_of(each) for each in bindings])

        def attempt() -> None:
            response = self.cluster.controller().request(message, CreateAclsResponse)
            for result in response.results:
                check(result.error_code, result.error_message)

        self.cluster.retrying(attempt)

    def delete_acls(self, bindings: Iterable[AclBinding]) -> None:
        """Deletes exactly these; one that is gone already is no error."""
        message = DeleteAclsRequest(filters=[deletion_of(each) for each in bindings])

        def attempt() -> None:
            response = self.cluster.controller().request(message, DeleteAclsResponse)
            for result in response.filter_results:
                check(result.error_code, result.error_message)
                for deleted in result.matching_acls:
                    check(deleted.error_code, deleted.error_message)

        self.cluster.retrying(attempt)

    # --- client quotas ---

    def quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        def attempt() -> dict[QuotaEntity, dict[str, float]]:
            response = self.cluster.controller().request(
                DescribeClientQuotasRequest(), DescribeClientQuotasResponse
            )
            check(response.error_code, response.error_message)
            return {
                QuotaEntity.of((part.entity_type, part.entity_name) for part in entry.entity): {
                    each.key: each.value for each in entry.values
                }
                for entry in response.entries or ()
            }

        return self.cluster.retrying(attempt)

    def alter_quotas(self, entity: QuotaEntity, values: Mapping[str, float | None]) -> None:
        """None removes a key."""
        ops = [
            OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in values.items()
        ]
        parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts]
        entry = AlterClientQuotasRequestEntryData(entity=parts, ops=ops)
        message = AlterClientQuotasRequest(entries=[entry])

        def attempt() -> None:
            response = self.cluster.controller().request(message, AlterClientQuotasResponse)
            for result in response.entries:
                check(result.error_code, result.error_message)

        self.cluster.retrying(attempt)
