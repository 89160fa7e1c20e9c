"""Decisions of the authorizer; tests/property compares combinations with a model."""

from __future__ import annotations

import pytest

from tidemill.errors import ApiError, ConfigError
from tidemill.security.acls import (
    CLUSTER,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    check_binding,
    check_filter,
)
from tidemill.security.authorizer import Authorizer, parse_super_users
from tidemill.security.principals import Principal

ALICE, BOB = Principal.user("alice"), Principal.user("bob")
ORDERS = Resource(ResourceType.TOPIC, "orders")
HOST = "10.1.2.3"


def rule(
    operation: Operation = Operation.READ,
    *,
    name: str = "orders",
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    permission: Permission = Permission.ALLOW,
    resource_type: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    return AclBinding(resource_type, name, pattern, principal, host, operation, permission)


def is_allowed(
    *rules: AclBinding, operation: Operation = Operation.READ, principal: Principal = ALICE, host: str = HOST
) -> bool:
    return Authorizer(rules).allows(principal, host, operation, ORDERS)


def test_nothing_is_allowed_without_a_rule() -> None:
    assert not is_allowed()
    assert Authorizer([], allows_without_acl=True).allows(ALICE, HOST, Operation.READ, ORDERS)


def test_default_allow_ends_where_any_rule_covers_the_resource() -> None:
    authorizer = Authorizer([rule(principal="User:bob")], allows_without_acl=True)
    assert not authorizer.allows(ALICE, HOST, Operation.READ, ORDERS)
    assert authorizer.allows(ALICE, HOST, Operation.READ, Resource(ResourceType.TOPIC, "other"))
    everything = Authorizer([rule(name="*", principal="User:bob")], allows_without_acl=True)
    assert not everything.allows(ALICE, HOST, Operation.READ, Resource(ResourceType.TOPIC, "other"))


@pytest.mark.parametrize(
    "denial",
    [
        {},
        {"name": "*"},
        {"name": "ord", "pattern": PatternType.PREFIXED},
        {"principal": "User:*"},
        {"operation": Operation.ALL},
        {"host": "10.1.0.0/16"},
    ],
)
def test_denial_wins_over_every_permission(denial: dict[str, str]) -> None:
    allowing = (rule(), rule(name="*"), rule(name="o", pattern=PatternType.PREFIXED), rule(Operation.ALL))
    assert is_allowed(*allowing)
    assert not is_allowed(*allowing, rule(**denial, permission=Permission.DENY))  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_permission_implies_describe_and_denial_does_not(operation: Operation) -> None:
    assert is_allowed(rule(operation), operation=Operation.DESCRIBE)
    denied = rule(operation, permission=Permission.DENY)
    assert is_allowed(rule(Operation.DESCRIBE), denied, operation=Operation.DESCRIBE)
    assert not is_allowed(rule(Operation.DESCRIBE), operation=operation)


def test_permission_to_alter_configs_implies_describing_them() -> None:
    assert is_allowed(rule(Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE_CONFIGS)
    assert not is_allowed(rule(Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE)


@pytest.mark.parametrize(
    ("rule_host", "host", "expected"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.4", "10.1.2.3", False),
        ("10.1.0.0/16", "10.1.2.3", True),
        ("10.2.0.0/16", "10.1.2.3", False),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::/32", "10.1.2.3", False),
        ("10.1.0.0/16", "not an address", False),
        ("10.1.2.3", "::ffff:10.1.2.3", True),
        ("::ffff:10.1.2.3", "10.1.2.3", True),
        ("::ffff:10.1.0.0/112", "10.1.2.3", True),
        ("10.1.0.0/16", "::ffff:10.1.2.3", True),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("2001:DB8::7", "2001:db8::7", True),
        ("broker.example", "10.1.2.3", False),
    ],
)
def test_host_is_an_address_or_a_range(rule_host: str, host: str, expected: bool) -> None:
    assert is_allowed(rule(host=rule_host), host=host) is expected


def test_super_user_is_not_denied() -> None:
    denied = rule(Operation.ALL, name="*", principal="User:*", permission=Permission.DENY)
    authorizer = Authorizer([denied], super_users=parse_super_users(" User:alice; User:CN=a,O=b ;"))
    assert authorizer.allows(ALICE, HOST, Operation.WRITE, ORDERS)
    assert authorizer.allows(Principal.user("CN=a,O=b"), HOST, Operation.ALTER, CLUSTER)
    assert authorizer.authorize_by_resource_type(ALICE, HOST, Operation.WRITE, ResourceType.TOPIC)
    assert not authorizer.allows(BOB, HOST, Operation.WRITE, ORDERS)


def test_super_users_that_cannot_be_read_stop_the_start() -> None:
    with pytest.raises(ConfigError, match=r"super\.users"):
        parse_super_users("alice")


def test_authorized_operations_are_bits() -> None:
    authorizer = Authorizer([rule(Operation.READ), rule(Operation.ALTER_CONFIGS)])
    assert authorizer.authorized_operations(ALICE, HOST, ORDERS) == 1 << 3 | 1 << 8 | 1 << 10 | 1 << 11
    assert authorizer.authorized_operations(BOB, HOST, ORDERS) == 0


def test_explanation_names_the_rule_that_decides_and_why_others_do_not() -> None:
    authorizer = Authorizer([rule(), rule(principal="User:bob"), rule(Operation.WRITE), rule(host="1.1.1.1")])
    lines = authorizer.explain(ALICE, HOST, Operation.READ, ORDERS)
    assert lines[0] == "ALLOWED by MatchingAcl(ALLOW User:alice from * to READ TOPIC:LITERAL:orders)"
    assert {line.rpartition(": ")[2] for line in lines[1:]} == {
        "applies",
        "for another principal",
        "for another operation",
        "for another host",
    }


def test_decisions_that_are_kept_are_bounded() -> None:
    authorizer = Authorizer([rule(name="*")])
    for number in range(20_001):
        authorizer.allows(ALICE, HOST, Operation.READ, Resource(ResourceType.TOPIC, str(number)))
    assert len(authorizer._decided) <= 20_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"operation": -1}, "Invalid operation UNKNOWN"),
        ({"permission": 1}, "Invalid permissionType ANY"),
        ({"resource_name": ""}, "Resource name should not be empty"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "alice"}, "Could not parse principal"),
        ({"host": ""}, "Host should not be empty"),
        ({"host": "10.0.0.0/99"}, "is not a range of addresses"),
    ],
)
def test_binding_that_cannot_be_a_rule_is_refused(change: dict[str, int], message: str) -> None:
    check_binding(rule())
    with pytest.raises(ApiError, match=message):
        check_binding(rule()._replace(**change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"resource_type": 0}, {"pattern_type": 9}, {"operation": 0}, {"permission": 7}]
)
def test_filter_with_an_unknown_number_is_refused(change: dict[str, int]) -> None:
    check_filter(AclFilter())
    with pytest.raises(ApiError, match="Unknown"):
        check_filter(AclFilter()._replace(**change))  # type: ignore[arg-type]
