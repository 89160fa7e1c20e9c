"""Options of `tidemill acls` become the rules and filters that Kafka's own tool would make, and explanations."""

from __future__ import annotations

import argparse
import shlex

import pytest

from tidemill.cli.failures import UsageError
from tidemill.cli.main import make_parser
from tidemill.cli.security.acl_rules import bindings_of, filters_of
from tidemill.cli.security.acls import explanation, notes_of
from tidemill.security.acls import AclBinding, Operation, Resource, ResourceType
from tidemill.security.principals import Principal


def parsed(line: str) -> argparse.Namespace:
    words = ["acls", *shlex.split(line)]
    return make_parser(words).parse_args(words)


def rules(line: str) -> set[str]:
    return {str(each) for each in bindings_of(parsed(f"add {line}"))}


def test_producer_may_write_describe_and_create_its_topic() -> None:
    assert rules("--producer --principal User:a --topic t --transactional-id x") == {
        "ALLOW User:a from * to WRITE TOPIC:LITERAL:t",
        "ALLOW User:a from * to DESCRIBE TOPIC:LITERAL:t",
        "ALLOW User:a from * to CREATE TOPIC:LITERAL:t",
        "ALLOW User:a from * to WRITE TRANSACTIONAL_ID:LITERAL:x",
        "ALLOW User:a from * to DESCRIBE TRANSACTIONAL_ID:LITERAL:x",
    }


def test_consumer_may_read_its_topics_and_group() -> None:
    assert rules("--consumer --principal User:a --topic t --group g --pattern prefixed") == {
        "ALLOW User:a from * to READ TOPIC:PREFIXED:t",
        "ALLOW User:a from * to DESCRIBE TOPIC:PREFIXED:t",
        "ALLOW User:a from * to READ GROUP:PREFIXED:g",
    }


def test_every_principal_host_and_operation_gets_a_rule() -> None:
    line = "--deny --principal User:a --principal User:b --host 10.0.0.0/8 --operation DescribeConfigs"
    assert rules(f"{line} --operation alter --cluster --pattern prefixed") == {
        f"DENY User:{user} from 10.0.0.0/8 to {operation} CLUSTER:LITERAL:kafka-cluster"
        for user in "ab"
        for operation in ("DESCRIBE_CONFIGS", "ALTER")
    }


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("--operation read --topic t", "--principal"),
        ("--principal User:a --operation read", "name a resource"),
        ("--principal User:a --topic t", "--operation"),
        ("--principal alice --operation read --topic t", "TYPE:NAME"),
        ("--principal User:a --operation write --group g", "there are read, delete"),
        ("--principal User:a --consumer --topic t", "--group"),
        ("--principal User:a --producer --topic t --operation read", "leave those out"),
        ("--principal User:a --producer --topic t --group g", "--group has no meaning"),
        ("--principal User:a --operation read --topic t --host 10.0.0.0/99", "range of addresses"),
    ],
)
def test_rule_that_cannot_be_made_says_what_is_missing(line: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        bindings_of(parsed(f"add {line}"))


def test_filter_matches_what_is_not_named() -> None:
    (allow, deny) = bindings_of(parsed("add --principal User:a --operation read --topic t --topic u"))
    deny = deny._replace(permission=2)
    (wanted,) = filters_of(parsed("list --principal User:a"))
    assert wanted.matches(allow)
    assert wanted.matches(deny)
    (denying,) = filters_of(parsed("list --deny"))
    assert not denying.matches(allow)
    assert denying.matches(deny)


def test_filter_with_pattern_match_finds_prefixed_rules() -> None:
    (rule,) = bindings_of(parsed("add --principal User:a --operation read --topic orders --pattern prefixed"))
    (by_name,) = filters_of(parsed("list --topic orders.eu"))
    (by_match,) = filters_of(parsed("list --topic orders.eu --pattern match"))
    assert not by_name.matches(rule)
    assert by_match.matches(rule)


TOPIC = Resource(ResourceType.TOPIC, "orders")


def explained(
    acls: list[AclBinding], settings: dict[str, str], *, host: str | None = None
) -> tuple[str, list[str]]:
    first, *rest = explanation(acls, settings, Principal.user("alice"), host, Operation.WRITE, TOPIC)
    return first, rest


def test_explanation_names_the_rule_and_those_that_do_not_apply() -> None:
    acls = bindings_of(parsed("add --principal User:alice --principal User:bob --producer --topic orders"))
    first, rest = explained(acls, {})
    assert first == "ALLOWED by MatchingAcl(ALLOW User:alice from * to WRITE TOPIC:LITERAL:orders)"
    assert "ALLOW User:bob from * to WRITE TOPIC:LITERAL:orders: for another principal" in rest


def test_explanation_without_host_counts_no_rule_of_a_host() -> None:
    acls = bindings_of(parsed("add --principal User:alice --host 10.0.0.1 --operation write --topic orders"))
    assert explained(acls, {})[0] == "DENIED by DefaultDeny"
    assert explained(acls, {}, host="10.0.0.1")[0].startswith("ALLOWED")


def test_explanation_knows_super_users_where_they_are_visible() -> None:
    assert explained([], {"super.users": "User:root;User:alice"})[0] == "ALLOWED by SuperUser"
    assert notes_of({"super.users": ""}) == []
    assert "not visible" in notes_of({})[0]


def test_explanation_counts_the_default_of_the_brokers() -> None:
    assert explained([], {})[0].startswith("DENIED by DefaultDeny")
    assert explained([], {"allow.everyone.if.no.acl.found": "true"})[0].startswith("ALLOWED by DefaultAllow")
