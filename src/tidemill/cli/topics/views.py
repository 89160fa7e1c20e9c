"""`tidemill views`: lists, describes, creates, changes and deletes views: topics that show some records of another."""

from __future__ import annotations

import argparse
import sys

from tidemill.cli.options import add_verb, add_verbs, connect, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.table import plural, print_table
from tidemill.client.admin.topics import Admin
from tidemill.client.admin.views import ViewAdmin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    add_verb(
        verbs,
        "list",
        _list,
        "list the views, their sources and filters",
        "tidemill views list\ntidemill views list --json",
    )
    create = add_verb(
        verbs,
        "create",
        _create,
        "create a view: a topic that shows the records of another that match a filter",
        "tidemill views create eu-orders --from orders --where \"region = 'eu' and not 'test' in tags\"\n"
        "tidemill views create gold --from orders --where \"key starts with 'gold-' or tier in ('gold', 'vip')\"",
    )
    create.add_argument("view", metavar="VIEW", help="the name of the new view")
    create.add_argument(
        "--from", dest="source", metavar="TOPIC", required=True, help="the topic that it shows"
    )
    _add_filter(create)
    alter = add_verb(
        verbs,
        "alter",
        _alter,
        "give a view another filter, for what is read from now on",
        "tidemill views alter eu-orders --where \"region in ('eu', 'ch')\"",
    )
    alter.add_argument("view", metavar="VIEW", help="the name of a view")
    _add_filter(alter)
    delete = add_verb(
        verbs,
        "delete",
        _delete,
        "delete views; the records of their sources stay",
        "tidemill views delete eu-orders\ntidemill views delete eu-orders gold --yes",
    )
    delete.add_argument("views", metavar="VIEW", nargs="+", help="the names of views")
    delete.add_argument("--yes", action="store_true", help="do not ask")


def _add_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--where",
        dest="filter",
        metavar="FILTER",
        required=True,
        help="over headers by name, the record's key as `key` and the set in the header `tags`",
    )


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        views = ViewAdmin(Admin(cluster)).list()
    if arguments.json:
        print_json([view._asdict() for view in views])
    elif views:
        rows = [(view.name, view.source, view.partitions, view.filter) for view in views]
        print_table(("VIEW", "FROM", "PARTITIONS", "WHERE"), rows)
    else:
        print(
            "no views yet; create one with `tidemill views create NAME --from TOPIC --where FILTER`",
            file=sys.stderr,
        )
    return 0


def _create(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        view = ViewAdmin(Admin(cluster)).create(arguments.view, arguments.source, arguments.filter)
    if arguments.json:
        print_json(view._asdict())
    else:
        print(f"created {view.name}, a view of {view.source} with {plural(view.partitions, 'partition')}")
    return 0


def _alter(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        ViewAdmin(Admin(cluster)).alter(arguments.view, arguments.filter)
    if arguments.json:
        print_json({"name": arguments.view, "filter": arguments.filter})
    else:
        print(f"{arguments.view} has another filter; it holds for what is read from now on")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.views))
    with connect(arguments) as cluster:
        views = ViewAdmin(Admin(cluster))
        for name in names:
            views.check_exists(name)
        confirm(f"Delete {', '.join(names)}? The records of the sources stay.", arguments.yes)
        for name in names:
            views.delete(name)
            if not arguments.json:
                print(f"deleted {name}", flush=True)
    if arguments.json:
        print_json(names)
    return 0
