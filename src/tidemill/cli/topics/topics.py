"""`tidemill topics`: lists, describes, creates, extends, shrinks and deletes topics, and deletes records."""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

from tidemill.cli import positions
from tidemill.cli.failures import CommandError
from tidemill.cli.options import (
    add_verb,
    add_verbs,
    chosen_partitions,
    connect,
    key_values,
    natural,
    positive,
    print_json,
)
from tidemill.cli.prompt import confirm
from tidemill.cli.resolve import resolve
from tidemill.cli.table import plural, print_fields, print_table, size_text
from tidemill.cli.topics import elect
from tidemill.cli.topics.shrink import add_verb_shrink
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.retry import UnknownTopic
from tidemill.config import PARTITIONS_ACTIVE
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.cluster import MetadataResponseTopic
from tidemill.types import TopicPartition, uuid_text

_TOPIC_SOURCE = 1


class _Partition(NamedTuple):
    """A row of `describe`. Offsets and size are None while the partition has no leader."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    start_offset: int | None
    end_offset: int | None
    size_bytes: int | None
    # Whether it takes no new records, because the topic gets fewer partitions.
    is_decommissioned: bool


class _Topic(NamedTuple):
    """A topic as `describe` shows it."""

    name: str
    id: str
    is_internal: bool
    # The topic's own settings, without inherited ones.
    configs: dict[str, str | None]
    partitions: list[_Partition]

    def as_json(self) -> dict[str, object]:
        return self._asdict() | {"partitions": [each._asdict() for each in self.partitions]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    _add_list_and_describe(verbs)
    create = add_verb(
        verbs,
        "create",
        _create,
        "create topics",
        "tidemill topics create orders\n"
        "tidemill topics create orders --partitions 6 --config retention.ms=86400000\n"
        "tidemill topics create users --config cleanup.policy=compact --if-not-exists",
    )
    create.add_argument("topics", metavar="TOPIC", nargs="+")
    create.add_argument(
        "--partitions", metavar="N", type=positive, help="default: the broker's num.partitions"
    )
    create.add_argument(
        "--replication-factor",
        metavar="N",
        type=positive,
        help="default: the broker's default.replication.factor",
    )
    create.add_argument(
        "--config",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of the topic; repeatable",
    )
    create.add_argument("--if-not-exists", action="store_true", help="leave a topic that exists as it is")
    delete = add_verb(
        verbs,
        "delete",
        _delete,
        "delete topics with all their records",
        "tidemill topics delete orders\ntidemill topics delete orders users --yes --if-exists",
    )
    delete.add_argument("topics", metavar="TOPIC", nargs="+")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.add_argument("--if-exists", action="store_true", help="skip topics that do not exist")
    add_partitions = add_verb(
        verbs,
        "add-partitions",
        _add_partitions,
        "give a topic more partitions; old records stay where they are, keys may move",
        "tidemill topics add-partitions orders --to 12",
    )
    add_partitions.add_argument("topic", metavar="TOPIC")
    add_partitions.add_argument(
        "--to", metavar="TOTAL", type=positive, required=True, help="the new number of partitions"
    )
    add_verb_shrink(verbs)
    _add_delete_records(verbs)
    elect.add_verb_elect(verbs)


def _add_list_and_describe(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    listing = add_verb(
        verbs, "list", _list, "list the topics", "tidemill topics list\ntidemill topics list --json"
    )
    listing.add_argument("--internal", action="store_true", help="also the broker's own topics")
    describe = add_verb(
        verbs,
        "describe",
        _describe,
        "show a topic's partitions, offsets, sizes and settings",
        "tidemill topics describe orders\ntidemill topics describe orders users --json",
    )
    describe.add_argument("topics", metavar="TOPIC", nargs="+")


def _add_delete_records(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    delete_records = add_verb(
        verbs,
        "delete-records",
        _delete_records,
        "delete the oldest records of a topic",
        "tidemill topics delete-records orders --before 1000 --partition 0\n"
        "tidemill topics delete-records orders --before 7d\n"
        "tidemill topics delete-records orders --before end --yes",
    )
    delete_records.add_argument("topic", metavar="TOPIC")
    delete_records.add_argument(
        "--before", metavar="WHERE", required=True, help=f"what stays begins here: {positions.HELP}"
    )
    delete_records.add_argument(
        "--partition", metavar="N", type=natural, action="append", help="only this partition; repeatable"
    )
    delete_records.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        topics = [topic for topic in Admin(cluster).topics() if arguments.internal or not topic.is_internal]
    if arguments.json:
        print_json(
            [
                {
                    "name": topic.name,
                    "id": uuid_text(topic.topic_id),
                    "partitions": len(topic.partitions),
                    "replication_factor": _replication_factor(topic),
                    "is_internal": topic.is_internal,
                }
                for topic in topics
            ]
        )
    elif topics:
        rows = [(topic.name, len(topic.partitions), _replication_factor(topic)) for topic in topics]
        print_table(("TOPIC", "PARTITIONS", "REPLICATION"), rows)
    else:
        print("no topics yet; create one with `tidemill topics create NAME`", file=sys.stderr)
    return 0


def _replication_factor(topic: MetadataResponseTopic) -> int:
    return max((len(partition.replica_nodes) for partition in topic.partitions), default=0)


def _describe(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        described = [_description(admin, _existing(admin, name)) for name in arguments.topics]
    if arguments.json:
        print_json([topic.as_json() for topic in described])
        return 0
    for number, topic in enumerate(described):
        if number:
            print()
        _print_description(topic)
    return 0


def _print_description(topic: _Topic) -> None:
    settings = " ".join(f"{key}={value}" for key, value in topic.configs.items())
    fields = [("topic", topic.name), ("id", topic.id), ("settings", settings or None)]
    going = [each for each in topic.partitions if each.is_decommissioned]
    if going:
        fields.append(("shrinks", _shrink_text(topic, going)))
    print_fields(fields)
    print_table(
        (
            "PARTITION",
            "LEADER",
            "REPLICAS",
            "IN SYNC",
            "START",
            "END",
            "SIZE",
            *(("STATE",) if going else ()),
        ),
        [
            (
                each.partition,
                each.leader,
                ",".join(map(str, each.replicas)),
                ",".join(map(str, each.in_sync)),
                each.start_offset,
                each.end_offset,
                None if each.size_bytes is None else size_text(each.size_bytes),
                *(("decommissioned" if each.is_decommissioned else "active",) if going else ()),
            )
            for each in topic.partitions
        ],
    )


def _shrink_text(topic: _Topic, going: list[_Partition]) -> str:
    left = sum((each.end_offset or 0) - (each.start_offset or 0) for each in going)
    return (
        f"to {plural(len(topic.partitions) - len(going), 'partition')}, {plural(left, 'record')} left in the others; "
        f"`tidemill topics shrink {topic.name}` shows more"
    )


def _existing(admin: Admin, name: str) -> MetadataResponseTopic:
    try:
        return admin.topic(name)
    except UnknownTopic:
        raise _no_topic(name) from None


def _no_topic(name: str) -> CommandError:
    return CommandError(f"there is no topic {name}; `tidemill topics list` shows what there is")


def _description(admin: Admin, topic: MetadataResponseTopic) -> _Topic:
    name = topic.name or ""
    led = [TopicPartition(name, each.partition_index) for each in topic.partitions if each.leader_id >= 0]
    starts, ends = admin.start_offsets(led), admin.end_offsets(led)
    sizes = _leader_sizes(admin, topic)
    configs = admin.describe_configs(ResourceType.TOPIC, name)
    values = {each.name: each.value for each in configs}
    active = int(values.get(PARTITIONS_ACTIVE) or 0) or len(topic.partitions)
    partitions = [
        _Partition(
            partition=each.partition_index,
            leader=each.leader_id if each.leader_id >= 0 else None,
            leader_epoch=each.leader_epoch,
            replicas=each.replica_nodes,
            in_sync=each.isr_nodes,
            start_offset=starts.get(TopicPartition(name, each.partition_index)),
            end_offset=ends.get(TopicPartition(name, each.partition_index)),
            size_bytes=sizes.get(each.partition_index),
            is_decommissioned=each.partition_index >= active,
        )
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    ]
    own_configs = {each.name: each.value for each in configs if each.config_source == _TOPIC_SOURCE}
    return _Topic(name, uuid_text(topic.topic_id), topic.is_internal, own_configs, partitions)


def _leader_sizes(admin: Admin, topic: MetadataResponseTopic) -> dict[int, int]:
    leaders = {each.partition_index: each.leader_id for each in topic.partitions if each.leader_id >= 0}
    sizes: dict[int, int] = {}
    for broker_id in set(leaders.values()):
        for directory in admin.log_dirs(broker_id):
            for hosted in directory.topics:
                if hosted.name == topic.name:
                    sizes.update(
                        (each.partition_index, each.partition_size)
                        for each in hosted.partitions
                        if leaders.get(each.partition_index) == broker_id
                    )
    return sizes


def _create(arguments: argparse.Namespace) -> int:
    configs = key_values(arguments.config, "--config")
    created = []
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        for name in arguments.topics:
            try:
                result = admin.create_topic(
                    name,
                    partition_count=arguments.partitions or -1,
                    replication_factor=arguments.replication_factor or -1,
                    configs=configs,
                )
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                if not arguments.if_not_exists:
                    raise CommandError(
                        f"topic {name} exists already; `tidemill topics describe {name}` shows it"
                    ) from None
                continue
            created.append(
                {
                    "name": name,
                    "id": uuid_text(result.topic_id),
                    "partitions": result.num_partitions,
                    "replication_factor": result.replication_factor,
                }
            )
            if not arguments.json:
                print(f"created {name} with {plural(result.num_partitions, 'partition')}", flush=True)
    if arguments.json:
        print_json(created)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    deleted = []
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        existing = admin.existing_topics(arguments.topics)
        missing = [name for name in arguments.topics if name not in existing]
        if missing and not arguments.if_exists:
            raise _no_topic(missing[0])
        names = [name for name in dict.fromkeys(arguments.topics) if name in existing]
        if names:
            confirm(f"Delete {', '.join(names)} with all records?", arguments.yes)
        for name in names:
            admin.delete_topic(name)
            deleted.append(name)
            if not arguments.json:
                print(f"deleted {name}", flush=True)
    if arguments.json:
        print_json(deleted)
    return 0


def _add_partitions(arguments: argparse.Namespace) -> int:
    name, total = arguments.topic, arguments.to
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        before = len(_existing(admin, name).partitions)
        if total <= before:
            raise CommandError(
                f"topic {name} has {plural(before, 'partition')} already; --to must be larger than that"
            )
        admin.create_partitions(name, total)
    if arguments.json:
        print_json({"name": name, "partitions_before": before, "partitions": total})
    else:
        print(f"{name} grew from {before} to {plural(total, 'partition')}")
    return 0


def _delete_records(arguments: argparse.Namespace) -> int:
    position = positions.parse_position(arguments.before)
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        _existing(admin, arguments.topic)
        partitions = chosen_partitions(cluster, arguments.topic, arguments.partition)
        starts = admin.start_offsets(partitions)
        targets = resolve(admin, partitions, position)
        # Offsets below the log start are left out: deleting there would be an error.
        targets = {each: offset for each, offset in targets.items() if offset > starts[each]}
        count = sum(offset - starts[each] for each, offset in targets.items())
        if targets:
            confirm(f"Delete {plural(count, 'record')} of {arguments.topic}?", arguments.yes)
        after = starts | admin.delete_records(targets)
    if arguments.json:
        print_json(
            [
                {
                    "partition": each.partition,
                    "start_offset_before": starts[each],
                    "start_offset": after[each],
                }
                for each in partitions
            ]
        )
    else:
        rows = [(each.partition, starts[each], after[each]) for each in partitions]
        print_table(("PARTITION", "START BEFORE", "START"), rows)
    return 0
