"""Access control lists: Kafka's words and numbers, rules (bindings) and the filters that find them.

A binding says that a principal at a host may, or may not, do an operation on the resources that a pattern names. The
numbers are those of the wire and of the metadata log.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tidemill.errors import ApiError, ErrorCode
from tidemill.security.addresses import is_inside, normal_address, parse_network
from tidemill.security.principals import Principal

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    # In a filter alone: every pattern that covers the name.
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Resource(NamedTuple):
    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name}:LITERAL:{self.name}"


CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)

# What can be done to each kind of resource.
SUPPORTED_OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
# What an ALLOW of another operation includes; a DENY includes nothing.
_DESCRIBE_BY = frozenset(
    (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
)
_DESCRIBE_CONFIGS_BY = frozenset((Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS))


class AclBinding(NamedTuple):
    """One rule. Principal and host stand as they were written; `User:*` matches every user."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        return (
            f"{Permission(self.permission).name} {self.principal} from {self.host} to "
            f"{Operation(self.operation).name} {ResourceType(self.resource_type).name}:"
            f"{PatternType(self.pattern_type).name}:{self.resource_name}"
        )

    def covers_name(self, name: str) -> bool:
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)

    def covers_operation(self, operation: int) -> bool:
        if self.operation in (Operation.ALL, operation):
            return True
        if self.permission != Permission.ALLOW:
            return False
        if operation == Operation.DESCRIBE:
            return self.operation in _DESCRIBE_BY
        return operation == Operation.DESCRIBE_CONFIGS and self.operation in _DESCRIBE_CONFIGS_BY

    def covers_host(self, host: str) -> bool:
        if self.host in (WILDCARD, host):
            return True
        if "/" in self.host:
            return is_inside(host, self.host)
        return normal_address(self.host) == normal_address(host)


class AclFilter(NamedTuple):
    """Finds bindings: None, or ANY where there is a number, admits everything."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self._matches_name(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _matches_name(self, binding: AclBinding) -> bool:
        if self.pattern_type == PatternType.MATCH:
            return self.resource_name is None or binding.covers_name(self.resource_name)
        return self.pattern_type in (PatternType.ANY, binding.pattern_type) and self.resource_name in (
            None,
            binding.resource_name,
        )


def check_binding(binding: AclBinding) -> None:
    """`ApiError(INVALID_REQUEST)` when it cannot be a rule."""
    for what, kind, code, excluded in (
        ("resourceType", ResourceType, binding.resource_type, (0, 1)),
        ("patternType", PatternType, binding.pattern_type, (0, 1, 2)),
        ("operation", Operation, binding.operation, (0, 1)),
        ("permissionType", Permission, binding.permission, (0, 1)),
    ):
        if code in excluded or not _is_member(kind, code):
            raise _invalid(f"Invalid {what} {_member_name(kind, code)}")
    if not binding.resource_name:
        raise _invalid("Resource name should not be empty")
    if binding.resource_type == ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    try:
        Principal.parse(binding.principal)
    except ValueError as error:
        raise _invalid(f"Could not parse principal: {error}") from None
    if not binding.host:
        raise _invalid("Host should not be empty")
    if "/" in binding.host and parse_network(binding.host) is None:
        raise _invalid(f"Host {binding.host[:60]!r} is not a range of addresses")


def check_filter(wanted: AclFilter) -> None:
    """`ApiError(INVALID_REQUEST)` when it has a number that stands for nothing."""
    for what, kind, code in (
        ("patternFilter", ResourceType, wanted.resource_type),
        ("patternFilter", PatternType, wanted.pattern_type),
        ("entryFilter", Operation, wanted.operation),
        ("entryFilter", Permission, wanted.permission),
    ):
        if code == 0 or not _is_member(kind, code):
            raise _invalid(f"Unknown {what}.")


def _is_member(kind: type[IntEnum], code: int) -> bool:
    return code in kind._value2member_map_


def _member_name(kind: type[IntEnum], code: int) -> str:
    return kind(code).name if _is_member(kind, code) else kind(0).name


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
