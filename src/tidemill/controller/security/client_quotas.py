"""Decisions about client quotas: AlterClientQuotas (Kafka: ClientQuotaControlManager, KIP-546)."""

from __future__ import annotations

import ipaddress

from tidemill.controller.image import MetadataImage
from tidemill.controller.records import Record
from tidemill.controller.security_image import quota_record
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)
from tidemill.security.quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    FRACTIONAL_KEYS,
    IP,
    IP_KEYS,
    USER,
    QuotaEntity,
)

_LONG_MAX = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1


def alter_client_quotas(
    image: MetadataImage, request: AlterClientQuotasRequest
) -> Decision[Record, AlterClientQuotasResponse]:
    records: list[Record] = []
    response = AlterClientQuotasResponse()
    for entry in request.entries:
        result = AlterClientQuotasResponseEntryData(entity=entry.entity)
        try:
            records += _decide(image, entry)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        response.entries.append(result)
    return Decision([] if request.validate_only else records, response)


def _decide(image: MetadataImage, entry: AlterClientQuotasRequestEntryData) -> list[Record]:
    entity = _checked_entity(entry)
    before = image.security.client_quotas.get(entity, {})
    after: dict[str, float] = dict(before)
    for op in entry.ops:
        _check_key(entity, op.key)
        if op.remove:
            after.pop(op.key, None)
        else:
            _check_value(op.key, op.value)
            after[op.key] = op.value
    return [
        quota_record(entity, key, after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def _checked_entity(entry: AlterClientQuotasRequestEntryData) -> QuotaEntity:
    if not entry.entity:
        raise _invalid("Invalid empty client quota entity")
    kinds = [each.entity_type for each in entry.entity]
    for each in entry.entity:
        if each.entity_type not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {each.entity_type}")
        if each.entity_name == "":
            raise _invalid(f"Empty {each.entity_type} not supported")
        if each.entity_type == IP and each.entity_name is not None and not _is_address(each.entity_name):
            raise _invalid(f"{each.entity_name} is not a valid IP address")
    if len(set(kinds)) < len(kinds):
        raise _invalid("A client quota entity names each type once")
    if IP in kinds and len(kinds) > 1:
        raise _invalid("Invalid quota entity combination, IP entity should not be used with User/ClientId")
    return QuotaEntity.of((each.entity_type, each.entity_name) for each in entry.entity)


def _check_key(entity: QuotaEntity, key: str) -> None:
    if key not in (IP_KEYS if entity.is_ip else CLIENT_KEYS):
        raise _invalid(f"Invalid configuration key {key}")


def _check_value(key: str, value: float) -> None:
    if not value > 0:  # nor is NaN
        raise _invalid(f"Quota {key} must be greater than 0")
    if key in FRACTIONAL_KEYS:
        return
    limit, kind = (_INT_MAX, "an INT") if key in IP_KEYS else (_LONG_MAX, "a LONG")
    # As doubles, as Kafka compares them: the largest LONG, which stands for no limit, comes as 2^63.
    if value > float(limit):
        raise _invalid(f"Proposed value for {key} is too large for {kind}")
    if abs(value - round(value)) > 1e-6:
        raise _invalid(f"{key} cannot be a fractional value")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
