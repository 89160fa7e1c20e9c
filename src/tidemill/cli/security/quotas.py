"""`tidemill quotas`: lists, sets and removes client quotas of users, client ids and addresses."""

from __future__ import annotations

import argparse
import sys

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import add_verb, add_verbs, connect, key_values, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.table import Quantity, print_table
from tidemill.client.admin.security import SecurityAdmin
from tidemill.security.quotas import CLIENT_ID, CLIENT_KEYS, IP, IP_KEYS, USER, QuotaEntity

# The entity type, its option, and the option of its default.
_ENTITIES = (
    (USER, "--user", "--user-defaults"),
    (CLIENT_ID, "--client-id", "--client-defaults"),
    (IP, "--ip", "--ip-defaults"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    listing = add_verb(
        verbs,
        "list",
        _list,
        "list the quotas, all or those that name an entity",
        "tidemill quotas list\ntidemill quotas list --user alice --json",
    )
    _add_entity(listing)
    setting = add_verb(
        verbs,
        "set",
        _set,
        "set quotas of a user, a client id, both together, or an address",
        "tidemill quotas set --user alice producer_byte_rate=1048576 consumer_byte_rate=2097152\n"
        "tidemill quotas set --user alice --client-defaults request_percentage=50\n"
        "tidemill quotas set --ip-defaults connection_creation_rate=20",
    )
    _add_entity(setting)
    keys = ", ".join(sorted(CLIENT_KEYS))
    setting.add_argument(
        "values", metavar="KEY=VALUE", nargs="*", help=f"{keys}; for addresses {', '.join(IP_KEYS)}"
    )
    removing = add_verb(
        verbs,
        "remove",
        _remove,
        "remove quotas, some keys or all of an entity",
        "tidemill quotas remove --user alice\ntidemill quotas remove --user alice producer_byte_rate --yes",
    )
    _add_entity(removing)
    removing.add_argument("values", metavar="KEY", nargs="*", help="only these (default: all)")
    removing.add_argument("--yes", action="store_true", help="do not ask")


def _add_entity(parser: argparse.ArgumentParser) -> None:
    for kind, option, default in _ENTITIES:
        chosen = parser.add_mutually_exclusive_group()
        chosen.add_argument(option, metavar="NAME", dest=f"{kind}_name", help=f"a {kind}")
        chosen.add_argument(
            default, action="store_true", dest=f"{kind}_default", help=f"every {kind} without its own quota"
        )


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _parts(arguments: argparse.Namespace) -> list[tuple[str, str | None]]:
    parts: list[tuple[str, str | None]] = []
    for kind, _, _ in _ENTITIES:
        name = getattr(arguments, f"{kind}_name")
        if name is not None or getattr(arguments, f"{kind}_default"):
            parts.append((kind, name))
    return parts


def _entity(arguments: argparse.Namespace) -> QuotaEntity:
    entity = QuotaEntity.of(_parts(arguments))
    if not entity.parts:
        options = ", ".join(option for each in _ENTITIES for option in each[1:])
        raise UsageError(f"name an entity: {options}")
    if entity.is_ip and len(entity.parts) > 1:
        raise UsageError("an address has quotas of its own; give --ip without --user and --client-id")
    return entity


def _list(arguments: argparse.Namespace) -> int:
    wanted = set(_parts(arguments))
    with connect(arguments) as cluster:
        found = SecurityAdmin(cluster).quotas()
    quotas = {entity: values for entity, values in found.items() if wanted <= set(entity.parts)}
    if arguments.json:
        print_json([{"entity": dict(entity.parts), "quotas": values} for entity, values in quotas.items()])
    elif quotas:
        rows = [
            (entity_text(entity), key, Quantity(f"{value:.15g}"))
            for entity, values in quotas.items()
            for key, value in sorted(values.items())
        ]
        print_table(("ENTITY", "QUOTA", "VALUE"), sorted(rows))
    else:
        print("no quotas; `tidemill quotas set` sets one", file=sys.stderr)
    return 0


def entity_text(entity: QuotaEntity) -> str:
    return " ".join(f"{kind}={'(default)' if name is None else name}" for kind, name in entity.parts[::-1])


def _set(arguments: argparse.Namespace) -> int:
    entity = _entity(arguments)
    allowed = IP_KEYS if entity.is_ip else CLIENT_KEYS
    values: dict[str, float] = {}
    for key, text in key_values(arguments.values, "quotas set").items():
        if key not in allowed:
            raise UsageError(f"{key} is no quota of this entity; it is one of {', '.join(sorted(allowed))}")
        try:
            values[key] = float(text)
        except ValueError:
            raise UsageError(f"{key}={text} is not a number") from None
    if not values:
        raise UsageError("give at least one KEY=VALUE")
    with connect(arguments) as cluster:
        SecurityAdmin(cluster).alter_quotas(entity, values)
    if arguments.json:
        print_json({"entity": dict(entity.parts), "quotas": values})
    else:
        print(f"set {', '.join(values)} of {entity_text(entity)}")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    entity = _entity(arguments)
    with connect(arguments) as cluster:
        admin = SecurityAdmin(cluster)
        known = admin.quotas().get(entity, {})
        keys = list(dict.fromkeys(arguments.values)) or sorted(known)
        missing = [key for key in keys if key not in known]
        if missing or not keys:
            raise CommandError(
                f"{entity_text(entity)} has no quota{' ' + missing[0] if missing else ''}; "
                "`tidemill quotas list` shows what there is"
            )
        confirm(f"Remove {', '.join(keys)} of {entity_text(entity)}?", arguments.yes)
        admin.alter_quotas(entity, dict.fromkeys(keys))
    if arguments.json:
        print_json({"entity": dict(entity.parts), "removed": keys})
    else:
        print(f"removed {', '.join(keys)} of {entity_text(entity)}")
    return 0
