"""`tidemill users`: lists, adds and removes the SCRAM users of a cluster.

A password is never an argument: other users of the machine see those, and a shell keeps them. It comes from a file, from
standard input, or from a prompt that does not show it.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path

from tidemill.cli.failures import CommandError
from tidemill.cli.options import add_verb, add_verbs, connect, natural, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.table import print_table
from tidemill.client.admin.security import SecurityAdmin
from tidemill.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, ScramMechanism

_DEFAULT_MECHANISM = ScramMechanism.SHA_512.mechanism_name
_STANDARD_INPUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    add_verb(verbs, "list", _list, "list the SCRAM users", "tidemill users list\ntidemill users list --json")
    add = add_verb(
        verbs,
        "add",
        _add,
        "add a SCRAM user, or replace its password",
        "tidemill users add alice\n"
        "tidemill users add alice --password-file alice.password\n"
        "openssl rand -hex 20 | tidemill users add alice --mechanism SCRAM-SHA-256",
    )
    add.add_argument("user", metavar="USER", help="its name, without `User:`")
    add.add_argument(
        "--password-file",
        metavar="FILE",
        help="a file whose first line is the password, or - for standard input (default: a prompt, or "
        "standard input where there is no terminal)",
    )
    _add_mechanism(add, f"repeatable (default {_DEFAULT_MECHANISM})")
    add.add_argument(
        "--iterations",
        metavar="N",
        type=natural,
        default=ITERATIONS_MIN,
        help=f"{ITERATIONS_MIN} to {ITERATIONS_MAX} rounds of hashing (default {ITERATIONS_MIN})",
    )
    remove = add_verb(
        verbs,
        "remove",
        _remove,
        "remove SCRAM users",
        "tidemill users remove alice\ntidemill users remove alice --mechanism SCRAM-SHA-256 --yes",
    )
    remove.add_argument("users", metavar="USER", nargs="+", help="its name, without `User:`")
    _add_mechanism(remove, "only this credential; repeatable (default: all of the user's)")
    remove.add_argument("--yes", action="store_true", help="do not ask")


def _add_mechanism(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--mechanism", metavar="NAME", action="append", choices=list(MECHANISMS), help=text)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        users = SecurityAdmin(cluster).users()
    if arguments.json:
        print_json(
            [
                {"user": user, "mechanisms": {each.mechanism_name: count for each, count in found.items()}}
                for user, found in users.items()
            ]
        )
    elif users:
        print_table(
            ("USER", "MECHANISM", "ITERATIONS"),
            [
                (user, each.mechanism_name, count)
                for user, found in users.items()
                for each, count in found.items()
            ],
        )
    else:
        print("no SCRAM users yet; `tidemill users add NAME` adds one", file=sys.stderr)
    return 0


def _add(arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.mechanism or [_DEFAULT_MECHANISM]))
    if not ITERATIONS_MIN <= arguments.iterations <= ITERATIONS_MAX:
        raise CommandError(f"--iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    password = read_password(arguments.password_file)
    with connect(arguments) as cluster:
        admin = SecurityAdmin(cluster)
        remarks = admin.set_password(
            arguments.user, password, [MECHANISMS[name] for name in names], arguments.iterations
        )
    if arguments.json:
        print_json({"user": arguments.user, "mechanisms": names})
    else:
        print(f"{arguments.user} can log in with {' and '.join(names)}")
    for remark in remarks:
        print(f"but {remark}", file=sys.stderr)
    return 0


def read_password(file: str | None) -> str:
    """Read a password from a file, standard input or a prompt. One that is empty is an error."""
    if file is not None and file != _STANDARD_INPUT:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read the password in {file}: {error}") from None
    elif file is None and sys.stdin.isatty():
        text = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != text:
            raise CommandError("the passwords differ; nothing was changed")
    else:
        text = sys.stdin.readline()
    lines = text.splitlines()
    if not lines or not lines[0]:
        raise CommandError("the password is empty; give it in --password-file or on standard input")
    return lines[0]


def _remove(arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.users))
    chosen = [MECHANISMS[name] for name in arguments.mechanism or MECHANISMS]
    with connect(arguments) as cluster:
        admin = SecurityAdmin(cluster)
        known = admin.users()
        removed = {name: [each for each in known.get(name, {}) if each in chosen] for name in names}
        for name, mechanisms in removed.items():
            if not mechanisms:
                raise CommandError(
                    f"{name} has no such SCRAM credential; `tidemill users list` shows what there is"
                )
        confirm(f"Remove {', '.join(names)}?", arguments.yes)
        for name, mechanisms in removed.items():
            admin.remove_user(name, mechanisms)
            if not arguments.json:
                print(f"removed {name}", flush=True)
    if arguments.json:
        print_json(
            [
                {"user": name, "mechanisms": [each.mechanism_name for each in mechanisms]}
                for name, mechanisms in removed.items()
            ]
        )
    return 0
