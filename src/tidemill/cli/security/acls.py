"""`tidemill acls`: lists, adds, removes and explains access control lists, in the words of `kafka-acls`."""

from __future__ import annotations

import argparse
import sys

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import add_verb, add_verbs, connect, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.security.acl_rules import bindings_of, filters_of, operation_named, resources_of
from tidemill.cli.table import plural, print_table, printable
from tidemill.client.admin.security import SecurityAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.admin.topics import ResourceType as ConfigResource
from tidemill.client.cluster import Cluster
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.security.acls import (
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from tidemill.security.authorizer import Authorizer, parse_super_users
from tidemill.security.principals import Principal

_OPERATIONS = [each.name.lower().replace("_", "-") for each in Operation if each > Operation.ANY]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    listing = add_verb(
        verbs,
        "list",
        _list,
        "list the ACLs, all or those of a principal or resource",
        "tidemill acls list\n"
        "tidemill acls list --principal User:alice\n"
        "tidemill acls list --topic orders --pattern match --json",
    )
    _add_rule(listing, ("any", "match", "literal", "prefixed"), "any")
    adding = add_verb(
        verbs,
        "add",
        _add,
        "add ACLs",
        "tidemill acls add --principal User:alice --operation read --operation describe --topic orders\n"
        "tidemill acls add --principal User:alice --producer --topic orders\n"
        "tidemill acls add --principal User:alice --consumer --topic orders. --group billing. --pattern prefixed\n"
        "tidemill acls add --deny --principal User:mallory --operation all --topic '*'",
    )
    _add_rule(adding, ("literal", "prefixed"), "literal")
    _add_conveniences(adding)
    removing = add_verb(
        verbs,
        "remove",
        _remove,
        "remove the ACLs that match",
        "tidemill acls remove --principal User:alice --producer --topic orders\n"
        "tidemill acls remove --principal User:alice --yes\n"
        "tidemill acls remove --topic orders --deny",
    )
    _add_rule(removing, ("any", "match", "literal", "prefixed"), "any")
    _add_conveniences(removing)
    removing.add_argument("--yes", action="store_true", help="do not ask")
    explaining = add_verb(
        verbs,
        "explain",
        _explain,
        "say whether a principal may do something, and which rule decides",
        "tidemill acls explain --principal User:alice --operation write --topic orders\n"
        "tidemill acls explain --principal User:alice --operation read --group billing --host 10.0.0.7 --json",
    )
    explaining.add_argument("--principal", metavar="TYPE:NAME", required=True, help="such as User:alice")
    explaining.add_argument(
        "--operation",
        metavar="NAME",
        required=True,
        type=_operation_word,
        choices=_OPERATIONS,
        help=", ".join(_OPERATIONS),
    )
    explaining.add_argument(
        "--host", metavar="ADDRESS", help="of the client (default: one that no rule names)"
    )
    _add_resources(explaining)


def _add_rule(parser: argparse.ArgumentParser, patterns: tuple[str, ...], default: str) -> None:
    permission = parser.add_mutually_exclusive_group()
    permission.add_argument("--allow", action="store_true", help="rules that allow (the default of add)")
    permission.add_argument("--deny", action="store_true", help="rules that deny; they win over every other")
    parser.add_argument("--principal", metavar="TYPE:NAME", action="append", help="User:NAME; repeatable")
    parser.add_argument(
        "--host", metavar="ADDRESS", action="append", help="of clients, or a range as CIDR; repeatable"
    )
    parser.add_argument(
        "--operation",
        metavar="NAME",
        action="append",
        type=_operation_word,
        choices=_OPERATIONS,
        help=f"{', '.join(_OPERATIONS)}; repeatable",
    )
    _add_resources(parser)
    parser.add_argument(
        "--pattern",
        choices=patterns,
        default=default,
        help=f"what the names of resources are (default {default})",
    )


def _add_resources(parser: argparse.ArgumentParser) -> None:
    for option in ("--topic", "--group", "--transactional-id", "--user"):
        parser.add_argument(option, metavar="NAME", action="append", help="repeatable; '*' for all")
    parser.add_argument("--cluster", action="store_true", help="the cluster itself")


def _add_conveniences(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--producer",
        action="store_true",
        help="what a producer needs: write, describe and create on --topic, write and describe on "
        "--transactional-id",
    )
    parser.add_argument(
        "--consumer",
        action="store_true",
        help="what a consumer needs: read and describe on --topic, read on --group",
    )


def _operation_word(text: str) -> str:
    """Kafka's tools write DescribeConfigs, DESCRIBE_CONFIGS and describe-configs."""
    operation = operation_named(text)
    return text if operation is None else operation.name.lower().replace("_", "-")


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    filters = filters_of(arguments)
    with connect(arguments) as cluster:
        found = _matching(SecurityAdmin(cluster), filters)
    if not found and not arguments.json:
        print("no ACLs match; `tidemill acls add` adds one", file=sys.stderr)
        return 0
    _print(found, is_json=arguments.json)
    return 0


def _matching(admin: SecurityAdmin, filters: list[AclFilter]) -> list[AclBinding]:
    """One request, whatever the number of filters: names may be combined with many operations."""
    found = _acls(admin)
    return [binding for binding in found if any(wanted.matches(binding) for wanted in filters)]


def _acls(admin: SecurityAdmin) -> list[AclBinding]:
    try:
        return admin.acls(AclFilter())
    except ApiError as error:
        raise _with_remedy(error) from None


def _with_remedy(error: ApiError) -> TidemillError:
    if error.code is ErrorCode.SECURITY_DISABLED:
        return CommandError(
            "the cluster has no authorizer, so that everybody may do everything; set authorizer.class.name="
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer and super.users on every node "
            f"({error.code.name})"
        )
    if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return CommandError(
            "this principal may not see or change ACLs; use the --command-config of a super user "
            f"({error.code.name})"
        )
    return error


def _add(arguments: argparse.Namespace) -> int:
    bindings = bindings_of(arguments)
    with connect(arguments) as cluster:
        try:
            SecurityAdmin(cluster).create_acls(bindings)
        except ApiError as error:
            raise _with_remedy(error) from None
    if not arguments.json:
        print(f"added {plural(len(bindings), 'ACL')}")
    _print(bindings, is_json=arguments.json)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    if not (arguments.principal or resources_of(arguments)):
        raise UsageError("name what to remove: a --principal, or a resource such as --topic")
    if arguments.producer or arguments.consumer:
        filters = [AclFilter(*each) for each in bindings_of(arguments)]
    else:
        filters = filters_of(arguments)
    with connect(arguments) as cluster:
        admin = SecurityAdmin(cluster)
        found = _matching(admin, filters)
        if not found:
            raise CommandError("no ACLs match; `tidemill acls list` shows what there is")
        if not arguments.json:
            _print(found, is_json=False)
        confirm(f"Remove {plural(len(found), 'ACL')}?", arguments.yes)
        try:
            admin.delete_acls(found)
        except ApiError as error:
            raise _with_remedy(error) from None
    if arguments.json:
        _print(found, is_json=True)
    else:
        print(f"removed {plural(len(found), 'ACL')}")
    return 0


def _print(bindings: list[AclBinding], *, is_json: bool) -> None:
    if is_json:
        print_json([as_json(each) for each in bindings])
        return
    print_table(
        ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"),
        [tuple(as_json(each).values()) for each in bindings],
    )


def as_json(binding: AclBinding) -> dict[str, str]:
    return {
        "resource_type": ResourceType(binding.resource_type).name.lower(),
        "resource_name": binding.resource_name,
        "pattern_type": PatternType(binding.pattern_type).name.lower(),
        "principal": binding.principal,
        "host": binding.host,
        "operation": Operation(binding.operation).name.lower(),
        "permission": Permission(binding.permission).name.lower(),
    }


# --- explain ---


def _explain(arguments: argparse.Namespace) -> int:
    resources = resources_of(arguments)
    if len(resources) != 1:
        raise UsageError("name one resource: --topic, --group, --cluster, --transactional-id or --user")
    (resource,) = resources
    try:
        principal = Principal.parse(arguments.principal)
    except ValueError as error:
        raise UsageError(f"--principal: {error}") from None
    operation = Operation[arguments.operation.upper().replace("-", "_")]
    with connect(arguments) as cluster:
        bindings = _acls(SecurityAdmin(cluster))
        settings = _authorizer_settings(cluster)
    lines = explanation(bindings, settings, principal, arguments.host, operation, resource)
    is_allowed = lines[0].startswith("ALLOWED")
    notes = notes_of(settings)
    if arguments.json:
        decision, *rules = lines
        print_json({"allowed": is_allowed, "decision": decision, "rules": rules, "notes": notes})
        return 0
    for line in lines:
        print(printable(line))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def explanation(
    bindings: list[AclBinding],
    settings: dict[str, str],
    principal: Principal,
    host: str | None,
    operation: Operation,
    resource: Resource,
) -> list[str]:
    """The decision, then the rules that cover the resource. `settings` are the brokers', as far as they are visible."""
    authorizer = Authorizer(
        bindings,
        super_users=parse_super_users(settings.get("super.users", "")),
        allows_without_acl=settings.get("allow.everyone.if.no.acl.found", "").lower() == "true",
    )
    return authorizer.explain(principal, host or WILDCARD, operation, resource)


def notes_of(settings: dict[str, str]) -> list[str]:
    if "super.users" in settings:
        return []
    return [
        "super.users of the brokers is not visible to this principal: a super user may do everything, "
        "whatever the ACLs say"
    ]


def _authorizer_settings(cluster: Cluster) -> dict[str, str]:
    """Returns the authorizer's settings by DescribeConfigs; none when this principal may not see them."""
    try:
        configs = Admin(cluster).describe_configs(ConfigResource.BROKER, str(cluster.broker_ids()[0]))
    except ApiError:
        return {}
    keys = ("super.users", "allow.everyone.if.no.acl.found")
    return {each.name: each.value for each in configs if each.name in keys and each.value is not None}
