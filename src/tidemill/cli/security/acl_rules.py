"""Turns the options of `tidemill acls` into rules and filters. Needs no cluster."""

from __future__ import annotations

import argparse
from itertools import product

from tidemill.cli.failures import UsageError
from tidemill.errors import ApiError
from tidemill.security.acls import (
    CLUSTER,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    check_binding,
)

_PRODUCER = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


def operation_named(text: str) -> Operation | None:
    """`describe-configs`, `DESCRIBE_CONFIGS` and `DescribeConfigs` are the same."""
    word = text.replace("-", "").replace("_", "").upper()
    return next((each for each in Operation if each.name.replace("_", "") == word), None)


def resources_of(arguments: argparse.Namespace) -> list[Resource]:
    found = [
        Resource(kind, name)
        for kind in (
            ResourceType.TOPIC,
            ResourceType.GROUP,
            ResourceType.TRANSACTIONAL_ID,
            ResourceType.USER,
        )
        for name in getattr(arguments, kind.name.lower()) or ()
    ]
    return [*found, CLUSTER] if arguments.cluster else found


def bindings_of(arguments: argparse.Namespace) -> list[AclBinding]:
    """The rules that `add` makes. A `UsageError` says what is missing."""
    resources = resources_of(arguments)
    if not arguments.principal:
        raise UsageError("name a --principal, such as User:alice")
    if not resources:
        raise UsageError("name a resource: --topic, --group, --cluster, --transactional-id or --user")
    chosen = _operations(arguments, resources)
    permission = Permission.DENY if arguments.deny else Permission.ALLOW
    bindings = []
    for (resource, operation), principal, host in product(
        chosen, arguments.principal, arguments.host or [WILDCARD]
    ):
        # The cluster has one name, which is not a prefix.
        is_named = resource.type is not ResourceType.CLUSTER and arguments.pattern != "any"
        pattern = PatternType[arguments.pattern.upper()] if is_named else PatternType.LITERAL
        binding = AclBinding(resource.type, resource.name, pattern, principal, host, operation, permission)
        try:
            check_binding(binding)
        except ApiError as error:
            raise UsageError(error.message) from None
        bindings.append(binding)
    return list(dict.fromkeys(bindings))


def _operations(arguments: argparse.Namespace, resources: list[Resource]) -> list[tuple[Resource, Operation]]:
    if not (arguments.producer or arguments.consumer):
        return _named_operations(arguments, resources)
    if arguments.operation or arguments.deny:
        raise UsageError("--producer and --consumer stand for operations that are allowed; leave those out")
    if not arguments.topic:
        raise UsageError("--producer and --consumer need a --topic")
    if arguments.consumer and not arguments.group:
        raise UsageError("--consumer needs a --group")
    roles = [
        role
        for is_wanted, role in ((arguments.producer, _PRODUCER), (arguments.consumer, _CONSUMER))
        if is_wanted
    ]
    chosen = []
    for resource in resources:
        operations = [each for role in roles for each in role.get(resource.type, ())]
        if not operations:
            raise UsageError(f"--{_word(resource.type)} has no meaning there; give it with an --operation")
        chosen += [(resource, operation) for operation in operations]
    return list(dict.fromkeys(chosen))


def _named_operations(
    arguments: argparse.Namespace, resources: list[Resource]
) -> list[tuple[Resource, Operation]]:
    if not arguments.operation:
        raise UsageError("name an --operation, or --producer or --consumer")
    chosen = []
    for resource, name in product(resources, arguments.operation):
        operation = Operation[name.upper().replace("-", "_")]
        supported = SUPPORTED_OPERATIONS[resource.type]
        if operation is not Operation.ALL and operation not in supported:
            words = ", ".join(each.name.lower().replace("_", "-") for each in supported)
            raise UsageError(
                f"--operation {name} does not exist for --{_word(resource.type)}; there are {words}, all"
            )
        chosen.append((resource, operation))
    return chosen


def filters_of(arguments: argparse.Namespace) -> list[AclFilter]:
    """The filters of `list` and `remove`. What is not named matches everything."""
    permission = Permission.ANY
    if arguments.allow or arguments.deny:
        permission = Permission.DENY if arguments.deny else Permission.ALLOW
    operations = [Operation[name.upper().replace("-", "_")] for name in arguments.operation or ()]
    resources: list[tuple[ResourceType, str | None]] = list(resources_of(arguments))
    return [
        AclFilter(kind, name, PatternType[arguments.pattern.upper()], principal, host, operation, permission)
        for (kind, name), principal, host, operation in product(
            resources or [(ResourceType.ANY, None)],
            arguments.principal or [None],
            arguments.host or [None],
            operations or [Operation.ANY],
        )
    ]


def _word(kind: ResourceType) -> str:
    return kind.name.lower().replace("_", "-")
