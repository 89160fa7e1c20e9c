"""`tidemill topics shrink`: a topic gets fewer partitions. The decommissioned ones stay readable until they are empty."""

from __future__ import annotations

import argparse

from tidemill.cli.failures import CommandError
from tidemill.cli.options import add_verb, connect, positive, print_json
from tidemill.cli.table import plural, size_text
from tidemill.client.admin.delays import DelayAdmin, PendingMessage
from tidemill.client.admin.shrinking import Shrink, ShrinkAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.retry import UnknownTopic
from tidemill.config import DELAYS_ENABLE
from tidemill.errors import ApiError, ErrorCode

_SCHEDULES_NAMED_MAX = 10


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
        shrinks = ShrinkAdmin(admin)
        try:
            count = len(admin.topic(name).partitions)
            if wanted is not None:
                if wanted >= count:
                    raise CommandError(
                        f"topic {name} has {plural(count, 'partition')}: {wanted} are not fewer"
                    )
                shrinks.begin(name, wanted, is_unkeyed=arguments.unkeyed)
            if arguments.cancel and not shrinks.cancel(name):
                raise CommandError(f"topic {name} is not getting fewer partitions")
            shrink = shrinks.progress(name)
            schedules = _schedules(cluster, shrink)
        except UnknownTopic:
            raise CommandError(
                f"there is no topic {name}; `tidemill topics list` shows what there is"
            ) from None
    if arguments.json:
        left = {each.partition: each.records_left for each in shrink.decommissioned}
        sizes = {each.partition: each.size_bytes for each in shrink.decommissioned}
        print_json(
            {
                "name": name,
                "partitions": shrink.partition_count,
                "active": shrink.active,
                "keeps_records_for_ever": shrink.keeps_records_for_ever,
                "records_left": left,
                "size_bytes": sizes,
                "schedules": [
                    {"partition": each.partition, "offset": each.offset, "schedule_id": each.schedule_id}
                    for each in schedules
                ],
            }
        )
        return 0
    _print(shrink)
    _print_schedules(name, schedules)
    return 0


def _schedules(cluster: Cluster, shrink: Shrink) -> list[PendingMessage]:
    """Some of the messages that recur in decommissioned partitions: each keeps its partition from getting empty."""
    if not shrink.decommissioned:
        return []
    if Admin(cluster).topic_values([shrink.topic], DELAYS_ENABLE).get(shrink.topic) != "true":
        return []
    try:
        return DelayAdmin(cluster).schedules(shrink.topic, shrink.active, _SCHEDULES_NAMED_MAX)
    except ApiError as error:
        if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        # Only those who may change the topic's configuration see what waits.
        return []


def _print_schedules(topic: str, schedules: list[PendingMessage]) -> None:
    if schedules:
        print(
            "messages that recur keep their partitions until they are cancelled; send them anew afterwards:"
        )
    for each in schedules:
        cancel = f"tidemill delays cancel {topic} --partition {each.partition} --offset {each.offset}"
        print(f"  {each.schedule_id} ({each.schedule}): `{cancel}`")


def _print(shrink: Shrink) -> None:
    name, count = shrink.topic, plural(shrink.partition_count, "partition")
    if not shrink.decommissioned:
        print(f"{name} has {count}, and all of them take new records")
        return
    print(f"{name} has {count}; {shrink.active} take new records")
    for each in shrink.decommissioned:
        size = "" if each.size_bytes is None else f" ({size_text(each.size_bytes)})"
        print(
            f"  partition {each.partition}: {plural(each.records_left, 'record')} left{size}, "
            "readable until retention has removed them"
        )
    if shrink.keeps_records_for_ever:
        print(
            f"{name} keeps its records for ever (retention.ms=-1): these partitions stay until their records are deleted, "
            f"for example by `tidemill topics delete-records {name} --partition N --before end`"
        )
