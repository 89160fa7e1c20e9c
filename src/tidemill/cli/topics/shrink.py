"""`tidemill topics shrink`: a topic gets fewer partitions. The decommissioned ones stay readable until they are empty."""

from __future__ import annotations

import argparse

from tidemill.cli.failures import CommandError
from tidemill.cli.options import add_verb, connect, positive, print_json
from tidemill.cli.table import plural
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.retry import UnknownTopic
from tidemill.config import PARTITIONS_ACTIVE, PARTITIONS_UNKEYED
from tidemill.types import TopicPartition

_FOR_EVER = "-1"


def add_verb_shrink(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    shrink = add_verb(
        verbs,
        "shrink",
        _shrink,
        "give a topic fewer partitions: the others take no new records and disappear when retention has emptied them",
        "tidemill topics shrink orders --partitions 4\n"
        "tidemill topics shrink orders             (how far it is)\n"
        "tidemill topics shrink events --partitions 5 --unkeyed\n"
        "tidemill topics shrink orders --cancel",
    )
    shrink.add_argument("topic", metavar="TOPIC")
    shrink.add_argument(
        "--partitions", metavar="N", type=positive, help="the new number; without it: how far a shrink is"
    )
    shrink.add_argument(
        "--cancel",
        action="store_true",
        help="take a shrink back: the partitions that are left take new records again",
    )
    shrink.add_argument(
        "--unkeyed",
        action="store_true",
        help="allow a number that does not divide the old one; records with the same key may change their partition",
    )


def _shrink(arguments: argparse.Namespace) -> int:
    name, wanted = arguments.topic, arguments.partitions
    if arguments.cancel and wanted is not None:
        raise CommandError("--cancel takes a shrink back: it goes without --partitions")
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        try:
            count = len(admin.topic(name).partitions)
        except UnknownTopic:
            raise CommandError(
                f"there is no topic {name}; `tidemill topics list` shows what there is"
            ) from None
        if wanted is not None:
            if wanted >= count:
                raise CommandError(f"topic {name} has {plural(count, 'partition')}: {wanted} are not fewer")
            changes: dict[str, str | None] = {PARTITIONS_ACTIVE: str(wanted)}
            if arguments.unkeyed:
                changes[PARTITIONS_UNKEYED] = "true"
            admin.alter_configs(ResourceType.TOPIC, name, changes=changes)
        configs = {each.name: each.value for each in admin.describe_configs(ResourceType.TOPIC, name)}
        if arguments.cancel:
            if not int(configs.get(PARTITIONS_ACTIVE) or 0):
                raise CommandError(f"topic {name} is not getting fewer partitions")
            changes = {PARTITIONS_ACTIVE: None}
            if PARTITIONS_UNKEYED in configs:
                changes[PARTITIONS_UNKEYED] = None
            admin.alter_configs(ResourceType.TOPIC, name, changes=changes)
            configs.pop(PARTITIONS_ACTIVE)
        active = wanted or int(configs.get(PARTITIONS_ACTIVE) or 0)
        left = _records_left(admin, name, range(active, count)) if active else {}
    if arguments.json:
        print_json({"name": name, "partitions": count, "active": active or count, "records_left": left})
        return 0
    if not active:
        print(f"{name} has {plural(count, 'partition')}, and all of them take new records")
        return 0
    print(f"{name} has {plural(count, 'partition')}; {active} take new records")
    for index, records in left.items():
        print(
            f"  partition {index}: {plural(records, 'record')} left, readable until retention has removed them"
        )
    if configs.get("retention.ms") == _FOR_EVER:
        print(
            f"{name} keeps its records for ever (retention.ms=-1): these partitions stay until their records are deleted, "
            f"for example by `tidemill topics delete-records {name} --partition N --before end`"
        )
    return 0


def _records_left(admin: Admin, name: str, indexes: range) -> dict[int, int]:
    partitions = [TopicPartition(name, index) for index in indexes]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions)
    return {tp.partition: ends[tp] - starts[tp] for tp in partitions}
