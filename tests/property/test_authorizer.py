"""The indexed authorizer decides as a twin that scans all rules."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from tidemill.security.authorizer import Authorizer
from tidemill.security.principals import Principal

TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
NAMES = ("a", "ab", "abc", "b", "*", "a*")
USERS = ("alice", "bob", "root", "*")
HOSTS = ("10.0.0.1", "10.0.1.1", "::1")
RULE_HOSTS = (*HOSTS, "*", "10.0.0.0/24", "::/64")
OPERATIONS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS)
ASKED = (*OPERATIONS, Operation.DESCRIBE_CONFIGS, Operation.ALTER, Operation.DELETE)
NETWORKS = {"10.0.0.0/24": {"10.0.0.1"}, "::/64": {"::1"}}
SUPER_USERS = frozenset({Principal.user("root")})

rules = st.builds(
    AclBinding,
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from([f"User:{name}" for name in USERS]),
    st.sampled_from(RULE_HOSTS),
    st.sampled_from((*OPERATIONS, Operation.ALL)),
    st.sampled_from((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
)
rule_sets = st.lists(rules, max_size=12)
resources = st.builds(Resource, st.sampled_from(TYPES), st.sampled_from(("a", "ab", "abcd", "b", "c", "*")))
principals = st.sampled_from(USERS[:3]).map(Principal.user)


def covers(rule: AclBinding, resource: Resource) -> bool:
    if rule.resource_type != resource.type:
        return False
    if rule.pattern_type == PatternType.LITERAL:
        return rule.resource_name == resource.name or rule.resource_name == "*"
    return resource.name.startswith(rule.resource_name)


def is_for(rule: AclBinding, principal: Principal, host: str) -> bool:
    is_here = rule.host == "*" or rule.host == host or host in NETWORKS.get(rule.host, ())
    return rule.principal in (str(principal), "User:*") and is_here


def decide_by_scan(
    acls: list[AclBinding],
    principal: Principal,
    host: str,
    operation: Operation,
    resource: Resource,
    allows_without_acl: bool,
) -> bool:
    if principal in SUPER_USERS:
        return True
    covering = [rule for rule in acls if covers(rule, resource)]
    if not covering:
        return allows_without_acl
    mine = [rule for rule in covering if is_for(rule, principal, host)]
    if any(
        rule.permission == Permission.DENY and rule.operation in (operation, Operation.ALL) for rule in mine
    ):
        return False
    sufficient = {operation, Operation.ALL}
    if operation == Operation.DESCRIBE:
        sufficient |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation == Operation.DESCRIBE_CONFIGS:
        sufficient.add(Operation.ALTER_CONFIGS)
    return any(rule.permission == Permission.ALLOW and rule.operation in sufficient for rule in mine)


@given(rule_sets, principals, st.sampled_from(HOSTS), st.sampled_from(ASKED), resources, st.booleans())
@settings(max_examples=examples(500), deadline=None)
def test_authorizer_decides_as_a_scan_of_all_rules(
    acls: list[AclBinding],
    principal: Principal,
    host: str,
    operation: Operation,
    resource: Resource,
    allows_without_acl: bool,
) -> None:
    authorizer = Authorizer(acls, super_users=SUPER_USERS, allows_without_acl=allows_without_acl)
    expected = decide_by_scan(acls, principal, host, operation, resource, allows_without_acl)
    for _ in range(2):  # decided, then remembered
        assert authorizer.authorize(principal, host, operation, resource).allowed is expected
    first = authorizer.explain(principal, host, operation, resource)[0]
    assert first.startswith("ALLOWED" if expected else "DENIED")


@given(rule_sets, principals, st.sampled_from(HOSTS), st.sampled_from(OPERATIONS), st.sampled_from(TYPES))
@settings(max_examples=examples(300), deadline=None)
def test_some_resource_is_allowed_when_one_of_many_names_is(
    acls: list[AclBinding], principal: Principal, host: str, operation: Operation, kind: ResourceType
) -> None:
    # Describe is implied for a resource, and not by type.
    if operation == Operation.DESCRIBE:
        acls = [rule for rule in acls if rule.operation in (Operation.DESCRIBE, Operation.ALL)]
    authorizer = Authorizer(acls, super_users=SUPER_USERS)
    names = {name + rest for name in NAMES for rest in ("", "z", "bz", "bcz")} - {"*"} | {"hardcode"}
    expected = any(
        decide_by_scan(acls, principal, host, operation, Resource(kind, name), False) for name in names
    )
    assert authorizer.authorize_by_resource_type(principal, host, operation, kind) is expected


@given(rule_sets, rule_sets, rule_sets, principals, st.sampled_from(HOSTS), st.sampled_from(ASKED), resources)
@settings(max_examples=examples(300), deadline=None)
def test_changed_authorizer_decides_as_one_made_from_the_rules(
    kept: list[AclBinding],
    removed: list[AclBinding],
    added: list[AclBinding],
    principal: Principal,
    host: str,
    operation: Operation,
    resource: Resource,
) -> None:
    before = Authorizer([*kept, *removed])
    expected_before = before.authorize(principal, host, operation, resource).allowed
    after = before.changed(removed, added)
    fresh = Authorizer([*kept, *added])
    assert after.allows(principal, host, operation, resource) is fresh.allows(
        principal, host, operation, resource
    )
    # The one before is what it was.
    assert Authorizer([*kept, *removed])._rules == before._rules
    assert before.authorize(principal, host, operation, resource).allowed is expected_before


@given(rule_sets, resources)
def test_filter_that_matches_a_name_finds_the_rules_that_cover_it(
    acls: list[AclBinding], resource: Resource
) -> None:
    wanted = AclFilter(
        resource_type=resource.type, resource_name=resource.name, pattern_type=PatternType.MATCH
    )
    assert [rule for rule in acls if wanted.matches(rule)] == [
        rule for rule in acls if covers(rule, resource)
    ]
