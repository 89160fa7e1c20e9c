"""ACLs, SCRAM credentials and client quotas in the metadata image, in Kafka's own records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.protocol.api.metadata import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    EntityData,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from tidemill.protocol.schema import DataMessage
from tidemill.security.acls import AclBinding
from tidemill.security.quotas import QuotaEntity
from tidemill.security.scram import ScramCredential, ScramMechanism

# A user's name and the mechanism.
ScramKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SecurityImage:
    """A part that did not change is the same object as in the image before: its identity is its version."""

    # By the id that the controller gave each rule.
    acls: Mapping[bytes, AclBinding] = field(default_factory=dict)
    scram_credentials: Mapping[ScramKey, ScramCredential] = field(default_factory=dict)
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self.scram_credentials.get((user, mechanism))


class SecurityDelta:
    """The records since an image. Each part is copied once, when its first record comes."""

    def __init__(self, image: SecurityImage) -> None:
        self._image = image
        self._acls: dict[bytes, AclBinding] | None = None
        self._scram_credentials: dict[ScramKey, ScramCredential] | None = None
        self._client_quotas: dict[QuotaEntity, Mapping[str, float]] | None = None

    def replay(self, record: DataMessage) -> None:
        _HANDLERS[type(record)](self, record)

    def apply(self) -> SecurityImage:
        image = self._image
        if self._acls is None and self._scram_credentials is None and self._client_quotas is None:
            return image
        return SecurityImage(
            image.acls if self._acls is None else self._acls,
            image.scram_credentials if self._scram_credentials is None else self._scram_credentials,
            image.client_quotas if self._client_quotas is None else self._client_quotas,
        )

    def _changed_acls(self) -> dict[bytes, AclBinding]:
        if self._acls is None:
            self._acls = dict(self._image.acls)
        return self._acls

    def _changed_credentials(self) -> dict[ScramKey, ScramCredential]:
        if self._scram_credentials is None:
            self._scram_credentials = dict(self._image.scram_credentials)
        return self._scram_credentials

    def _replay_acl(self, record: AccessControlEntryRecord) -> None:
        acls = self._changed_acls()
        assert record.id not in acls, f"the ACL {record.id.hex()} exists"
        acls[record.id] = AclBinding(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def _replay_remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        del self._changed_acls()[record.id]

    def _replay_credential(self, record: UserScramCredentialRecord) -> None:
        self._changed_credentials()[record.name, record.mechanism] = ScramCredential(
            record.salt, record.stored_key, record.server_key, record.iterations
        )

    def _replay_remove_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        del self._changed_credentials()[record.name, record.mechanism]

    def _replay_quota(self, record: ClientQuotaRecord) -> None:
        if self._client_quotas is None:
            self._client_quotas = dict(self._image.client_quotas)
        entity = QuotaEntity.of((each.entity_type, each.entity_name) for each in record.entity)
        values = dict(self._client_quotas.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self._client_quotas[entity] = values
        else:
            self._client_quotas.pop(entity, None)


_HANDLERS: dict[type[DataMessage], Callable[[SecurityDelta, Any], None]] = {
    AccessControlEntryRecord: SecurityDelta._replay_acl,
    RemoveAccessControlEntryRecord: SecurityDelta._replay_remove_acl,
    UserScramCredentialRecord: SecurityDelta._replay_credential,
    RemoveUserScramCredentialRecord: SecurityDelta._replay_remove_credential,
    ClientQuotaRecord: SecurityDelta._replay_quota,
}
SECURITY_RECORDS = tuple(_HANDLERS)


def security_records(image: SecurityImage) -> Iterator[DataMessage]:
    """Yields the records of a snapshot of the security image."""
    for (name, mechanism), kept in image.scram_credentials.items():
        yield credential_record(name, mechanism, kept)
    for acl_id, binding in image.acls.items():
        yield acl_record(acl_id, binding)
    for entity, values in image.client_quotas.items():
        for key, value in values.items():
            yield quota_record(entity, key, value)


def acl_record(acl_id: bytes, binding: AclBinding) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def credential_record(name: str, mechanism: int, kept: ScramCredential) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=kept.salt,
        stored_key=kept.stored_key,
        server_key=kept.server_key,
        iterations=kept.iterations,
    )


def quota_record(entity: QuotaEntity, key: str, value: float | None) -> ClientQuotaRecord:
    """Without a value the key is removed."""
    return ClientQuotaRecord(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
        key=key,
        value=0.0 if value is None else value,
        remove=value is None,
    )
