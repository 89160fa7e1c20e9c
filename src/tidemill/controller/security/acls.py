"""Decisions about ACLs: CreateAcls and DeleteAcls (Kafka: AclControlManager).

Each entry of a request stands for itself. A rule that exists already is created without a record. A filter names what
it removes.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.controller.image import MetadataImage
from tidemill.controller.records import Record
from tidemill.controller.security_image import acl_record
from tidemill.errors import ApiError
from tidemill.machine import Decision
from tidemill.protocol.api.metadata import RemoveAccessControlEntryRecord
from tidemill.protocol.api.security import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tidemill.security.acls import AclBinding, AclFilter, check_binding, check_filter


def create_acls(
    image: MetadataImage, request: CreateAclsRequest, new_uuid: Callable[[], bytes]
) -> Decision[Record, CreateAclsResponse]:
    existing = set(image.security.acls.values())
    records: list[Record] = []
    response = CreateAclsResponse()
    for creation in request.creations:
        binding = AclBinding(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
        result = AclCreationResult()
        try:
            check_binding(binding)
            if binding not in existing:
                existing.add(binding)
                records.append(acl_record(new_uuid(), binding))
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        response.results.append(result)
    return Decision(records, response)


def delete_acls(image: MetadataImage, request: DeleteAclsRequest) -> Decision[Record, DeleteAclsResponse]:
    """A rule that several filters match is named by each and removed once."""
    acls = image.security.acls
    removed: dict[bytes, None] = {}
    response = DeleteAclsResponse()
    for each in request.filters:
        wanted = AclFilter(
            each.resource_type_filter,
            each.resource_name_filter,
            each.pattern_type_filter,
            each.principal_filter,
            each.host_filter,
            each.operation,
            each.permission_type,
        )
        result = DeleteAclsFilterResult()
        try:
            check_filter(wanted)
            matching = {acl_id: binding for acl_id, binding in acls.items() if wanted.matches(binding)}
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        else:
            removed.update(dict.fromkeys(matching))
            result.matching_acls = [_matching_acl(binding) for binding in matching.values()]
        response.filter_results.append(result)
    return Decision([RemoveAccessControlEntryRecord(id=acl_id) for acl_id in removed], response)


def _matching_acl(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )
