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

_MECHANISMS = {mechanism.value: mechanism for mechanism in ScramMechanism}
# Made once: a request may name 20,000 users.
_ALTERED_TWICE = ApiError(
    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
)
_NO_NAME = ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
_UNKNOWN_MECHANISM = ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
_NOT_FOUND = ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
_TOO_FEW_ITERATIONS = ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
_TOO_MANY_ITERATIONS = ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
_NOTHING_TO_STORE = ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")


def alter_user_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest
) -> Decision[Record, AlterUserScramCredentialsResponse]:
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    counts = Counter((change.name, change.mechanism) for change in changes)
    records: dict[str, list[Record]] = {}
    errors: dict[str, ApiError] = {}
    for change in changes:
        decided = records.setdefault(change.name, [])
        if change.name in errors:
            continue
        if counts[change.name, change.mechanism] > 1:
            record_or_error: Record | ApiError = _ALTERED_TWICE
        else:
            record_or_error = _decide(image.security.scram_credentials, change)
        if isinstance(record_or_error, ApiError):
            errors[change.name] = record_or_error
        else:
            decided.append(record_or_error)
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


def _decide(known: Mapping[ScramKey, ScramCredential], change: _Change) -> Record | ApiError:
    if not change.name:
        return _NO_NAME
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        return _UNKNOWN_MECHANISM
    if isinstance(change, ScramCredentialDeletion):
        if (change.name, mechanism) not in known:
            return _NOT_FOUND
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=mechanism)
    if change.iterations < ITERATIONS_MIN:
        return _TOO_FEW_ITERATIONS
    if change.iterations > ITERATIONS_MAX:
        return _TOO_MANY_ITERATIONS
    if not change.salt or not change.salted_password:
        return _NOTHING_TO_STORE
    kept = credential(mechanism, change.salted_password, change.salt, change.iterations)
    return credential_record(change.name, mechanism, kept)
