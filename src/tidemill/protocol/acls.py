"""One ACL as CreateAcls and DeleteAcls name it."""

from __future__ import annotations

from tidemill.protocol.api.security import AclCreation, DeleteAclsFilter
from tidemill.security.acls import AclBinding


def creation_of(binding: AclBinding) -> AclCreation:
    return AclCreation(
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        resource_pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def deletion_of(binding: AclBinding) -> DeleteAclsFilter:
    """A filter that matches this ACL alone."""
    return DeleteAclsFilter(
        resource_type_filter=binding.resource_type,
        resource_name_filter=binding.resource_name,
        pattern_type_filter=binding.pattern_type,
        principal_filter=binding.principal,
        host_filter=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )
