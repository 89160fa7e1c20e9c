"""Decisions about topics that get fewer partitions (decision 18).

`tidemill.partitions.active` says how many partitions store new records. The others are decommissioned: each passes its
records on, and is removed when it is empty, the highest first. Its leader proposes that with AlterPartition and an ISR of
no broker. As many go in one step as are active. Clients choose a partition by the number that they see, and a key stays
where it is under each multiple of the active ones.

The controller keeps six more settings of such a topic:

- which of the partitions that go next are empty, and where their logs end;
- how many partitions are left, which cuts the list of the image;
- how many there were, because some clients never learn of fewer;
- the last leader epoch of each partition that is gone, so that one which is added later is not taken for it;
- where the log of each partition that is gone ended: one that is added later begins there, so positions stay right;
- the numbers that the topic was shrunk to, which tell where records may be stored.

Removing `tidemill.partitions.active` takes a shrink back: the partitions that are left store new records again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from tidemill.config import (
    PARTITIONS_ACTIVE,
    PARTITIONS_DIVISORS,
    PARTITIONS_EMPTY,
    PARTITIONS_ENDS,
    PARTITIONS_EPOCHS,
    PARTITIONS_FORMER,
    PARTITIONS_TOTAL,
    PARTITIONS_UNKEYED,
    TOPIC_KEYS_BY_NAME,
    own_topic_value,
)
from tidemill.controller.image import MetadataImage, TopicImage, topic_resource
from tidemill.controller.records import Record
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import INTERNAL_TOPICS
from tidemill.protocol.api.metadata import ConfigRecord, PartitionChangeRecord
from tidemill.protocol.records import NAMED_PARTITION_MAX
from tidemill.types import LeaderEpoch

_LISTS_REMEMBERED = 64

# No request may change them.
CONTROLLER_SETTINGS = (
    PARTITIONS_DIVISORS,
    PARTITIONS_EMPTY,
    PARTITIONS_ENDS,
    PARTITIONS_EPOCHS,
    PARTITIONS_FORMER,
    PARTITIONS_TOTAL,
)


def active_partitions(configs: Mapping[str, str]) -> int:
    """Returns how many partitions of a topic store new records; 0 when all do."""
    return _number(configs, PARTITIONS_ACTIVE)


def removed_epochs(configs: Mapping[str, str]) -> Mapping[int, int]:
    """The last leader epoch of each partition that was removed, by its index. A newer one may have that index now."""
    return _by_index(configs, PARTITIONS_EPOCHS)


def removed_ends(configs: Mapping[str, str]) -> Mapping[int, int]:
    """The log end offset of each partition that was removed, by its index. A newer one with that index begins there."""
    return _by_index(configs, PARTITIONS_ENDS)


def has_had(image: MetadataImage, topic: str, index: int) -> bool:
    """Whether a topic has a partition, or had one that is gone: what producers send to it is stored."""
    former = _number(image.topic_config(topic), PARTITIONS_FORMER)
    return image.partition(topic, index) is not None or 0 <= index < former


def _is_unkeyed(configs: Mapping[str, str]) -> bool:
    return configs.get(PARTITIONS_UNKEYED, "false").strip().lower() == "true"


def _number(configs: Mapping[str, str], name: str) -> int:
    value = own_topic_value(TOPIC_KEYS_BY_NAME[name], configs)
    return value if isinstance(value, int) else 0


def _items(configs: Mapping[str, str], name: str) -> tuple[str, ...]:
    value = own_topic_value(TOPIC_KEYS_BY_NAME[name], configs)
    return value if isinstance(value, tuple) else ()


def _by_index(configs: Mapping[str, str], name: str) -> Mapping[int, int]:
    return _parsed(name, configs.get(name, ""))


# Group coordinators look up every offset that is committed or fetched, so a long list is parsed once.
@lru_cache(_LISTS_REMEMBERED)
def _parsed(name: str, text: str) -> Mapping[int, int]:
    pairs = (entry.split(":") for entry in _items({name: text}, name))
    return MappingProxyType({int(index): int(number) for index, number in pairs})


def _pairs(numbers: Mapping[int, int]) -> str:
    return ",".join(f"{index}:{number}" for index, number in sorted(numbers.items()))


def check_new(name: str, configs: Mapping[str, str]) -> None:
    """Raise `ApiError` when a topic is to be created with settings of a shrink."""
    for key in CONTROLLER_SETTINGS:
        if key in configs:
            raise _refused(f"{key} of '{name}' is written by the controller")
    if active_partitions(configs):
        raise _refused(
            f"{PARTITIONS_ACTIVE} of '{name}' cannot be set when the topic is created: "
            "create it with as many partitions as it needs"
        )


def check_active(
    image: MetadataImage,
    name: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    is_compacted: bool,
) -> None:
    """Raise `ApiError` when a topic cannot get as few partitions as a change of its settings says."""
    for key in CONTROLLER_SETTINGS:
        if before.get(key) != after.get(key):
            raise _refused(f"{key} of '{name}' is written by the controller")
    was, wanted = active_partitions(before), active_partitions(after)
    if was == wanted:
        if wanted and is_compacted:
            raise _refused(
                f"'{name}' is getting {was} partition(s): it cannot be compacted before that is done"
            )
        if wanted and before.get(PARTITIONS_UNKEYED) != after.get(PARTITIONS_UNKEYED):
            raise _refused(
                f"{PARTITIONS_UNKEYED} of '{name}' cannot be changed while the topic gets fewer partitions"
            )
        return
    if not wanted:
        return
    if was:
        raise _refused(
            f"'{name}' is getting {was} partition(s) already: wait until that is done, or take it back first"
        )
    topic = image.topics_by_name[name]
    count = len(topic.partitions)
    if name in INTERNAL_TOPICS:
        raise _refused(f"'{name}' is an internal topic and keeps its partitions")
    if wanted >= count:
        raise _refused(f"'{name}' has {count} partition(s): {wanted} are not fewer")
    if count > NAMED_PARTITION_MAX + 1:
        raise _refused(
            f"'{name}' has {count} partitions: only topics with at most {NAMED_PARTITION_MAX + 1} can get fewer"
        )
    if is_compacted:
        raise _refused(
            f"'{name}' is compacted: old values of a key would stay beside the new ones, in another partition"
        )
    if count % wanted and not _is_unkeyed(after):
        raise _refused(
            f"{wanted} does not divide the {count} partitions of '{name}', so records with the same key would go to "
            f"different partitions. Choose a number that does, or set {PARTITIONS_UNKEYED}=true if keys do not matter"
        )
    if any(partition.is_reassigned for partition in topic.partitions):
        raise _refused(f"partitions of '{name}' are being reassigned: wait until that is done")


def role_changes(topic: TopicImage, before: Mapping[str, str], after: Mapping[str, str]) -> list[Record]:
    """New leader epochs for the partitions that are decommissioned, or are not any more.

    A leader in the new epoch knows the settings that were written with it.
    """
    was, wanted = active_partitions(before), active_partitions(after)
    if was == wanted:
        return []
    records: list[Record] = []
    if wanted:
        records.append(_divisors(topic, before, wanted))
    else:
        count = len(topic.partitions)
        if _number(before, PARTITIONS_FORMER) > count:
            # What is sent to partitions that are gone is stored by the number that clients see.
            records.append(_divisors(topic, before, count))
        if PARTITIONS_TOTAL in before:
            # It would cut off what is added later.
            records.append(_setting(topic, PARTITIONS_TOTAL, None))
        if PARTITIONS_UNKEYED in after:
            # It was said of this shrink alone.
            records.append(_setting(topic, PARTITIONS_UNKEYED, None))
    if PARTITIONS_EMPTY in before:
        # What was empty takes records again.
        records.append(_setting(topic, PARTITIONS_EMPTY, None))
    return [
        *records,
        *(
            PartitionChangeRecord(partition_id=index, topic_id=topic.id, leader=partition.leader)
            for index, partition in enumerate(topic.partitions)
            if index >= (wanted or was) and partition.has_leader
        ),
    ]


def _divisors(topic: TopicImage, before: Mapping[str, str], last: int) -> ConfigRecord:
    earlier = (each for each in _items(before, PARTITIONS_DIVISORS) if each != str(last))
    return _setting(topic, PARTITIONS_DIVISORS, ",".join([*earlier, str(last)]))


def going_together(configs: Mapping[str, str], count: int) -> range:
    """The partitions that are removed in the next step, of a topic that has `count`."""
    active = active_partitions(configs)
    if not 0 < active < count:
        return range(0)
    return range(count - 1 if _is_unkeyed(configs) else (count - 1) // active * active, count)


def is_removable(image: MetadataImage, topic: TopicImage, index: int) -> bool:
    """Whether a partition is one of those that go next, and in sync everywhere."""
    partition = topic.partitions[index]
    return (
        index in going_together(image.topic_config(topic.name), len(topic.partitions))
        and set(partition.isr) == set(partition.replicas)
        and not partition.is_reassigned
    )


def removal_records(
    image: MetadataImage, topic: TopicImage, index: int, end_offset: int, decided: Sequence[Record]
) -> list[Record]:
    """Note that a partition is empty, and where its log ends. With the last of its step, all of that step are removed.

    An empty partition stays as it is, since it takes no records. `decided` are the records of this request so far.
    """
    configs = image.topic_config(topic.name)
    noted = _noted(configs, topic, decided)
    if noted is None:
        return []
    going = going_together(configs, len(topic.partitions))
    empty = {**noted, index: end_offset}
    if not empty.keys() >= set(going) or any(topic.partitions[each].is_reassigned for each in going):
        return [] if empty == noted else [_setting(topic, PARTITIONS_EMPTY, _pairs(empty))]
    former = max(len(topic.partitions), _number(configs, PARTITIONS_FORMER))
    epochs = {**removed_epochs(configs), **{each: topic.partitions[each].leader_epoch for each in going}}
    changes = {
        PARTITIONS_TOTAL: going.start,
        PARTITIONS_EPOCHS: _pairs(epochs),
        PARTITIONS_ENDS: _pairs({**removed_ends(configs), **{each: empty[each] for each in going}}),
        PARTITIONS_FORMER: former,
    }
    records: list[Record] = [_setting(topic, name, str(value)) for name, value in changes.items()]
    records.append(_setting(topic, PARTITIONS_EMPTY, None))
    if going.start == active_partitions(configs):
        done = [name for name in (PARTITIONS_ACTIVE, PARTITIONS_UNKEYED) if name in configs]
        records += [_setting(topic, name, None) for name in (*done, PARTITIONS_TOTAL)]
    return records


def _noted(
    configs: Mapping[str, str], topic: TopicImage, decided: Sequence[Record]
) -> Mapping[int, int] | None:
    """The ends of partitions that are known to be empty; None when this request has decided to remove them."""
    for record in decided:
        if isinstance(record, ConfigRecord) and (record.resource_name, record.name) == (
            topic.name,
            PARTITIONS_EMPTY,
        ):
            if record.value is None:
                return None
            configs = {PARTITIONS_EMPTY: record.value}
    return _by_index(configs, PARTITIONS_EMPTY)


def first_leader_epoch(image: MetadataImage, topic: TopicImage) -> LeaderEpoch:
    """The leader epoch of a partition that is added to a topic."""
    return LeaderEpoch(max(removed_epochs(image.topic_config(topic.name)).values(), default=-1) + 1)


def _setting(topic: TopicImage, name: str, value: str | None) -> ConfigRecord:
    resource = topic_resource(topic.name)
    return ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)


def _refused(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_CONFIG, message)
