"""Decisions about SCRAM credentials: AlterUserScramCredentials (Kafka: ScramControlManager, KIP-554).

A client sends the salted password, never the password. What is kept are the two keys that are made from it. All changes
for one user stand or fall together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tidemill.controller.image import MetadataImage
from tidemill.controller.records import Record
from tidemill.controller.security_image import ScramKey, credential_record
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.metadata import RemoveUserScramCredentialRecord
from tidemill.protocol.api.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidemill.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential,
)

_Change = ScramCredentialDeletion | ScramCredentialUpsertion


def alter_user_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest
) -> Decision[Record, AlterUserScramCredentialsResponse]:
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    counts = Counter((change.name, change.mechanism) for change in changes)
    records: dict[str, list[Record]] = {}
    errors: dict[str, ApiError] = {}
    for change in changes:
        decided = records.setdefault(change.name, [])
        try:
            if counts[change.name, change.mechanism] > 1:
                raise ApiError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            decided.append(_decide(image.security.scram_credentials, change))
        except ApiError as error:
            errors.setdefault(change.name, error)
    results = [
        AlterUserScramCredentialsResult(
            user=user, error_code=errors[user].code, error_message=errors[user].message
        )
        if user in errors
        else AlterUserScramCredentialsResult(user=user)
        for user in records
    ]
    accepted = [record for user, decided in records.items() if user not in errors for record in decided]
    return Decision(accepted, AlterUserScramCredentialsResponse(results=results))


def _decide(known: Mapping[ScramKey, ScramCredential], change: _Change) -> Record:
    if not change.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    try:
        mechanism = ScramMechanism(change.mechanism)
    except ValueError:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None
    if isinstance(change, ScramCredentialDeletion):
        if (change.name, mechanism) not in known:
            raise ApiError(
                ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
            )
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=mechanism)
    if change.iterations < ITERATIONS_MIN:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not change.salt or not change.salted_password:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")
    kept = credential(mechanism, change.salted_password, change.salt, change.iterations)
    return credential_record(change.name, mechanism, kept)
