"""ShareFetch and ShareAcknowledge: sessions, locks and acknowledgements."""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64encode
from typing import Any

from bench.diff.batches import batch, records
from bench.diff.cases.topics import UNKNOWN_ID
from bench.diff.members import new_group
from bench.diff.script import Script, Topic, case

GROUP_RESOURCE = 32
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
WAIT_MS = 5_000
RENEW_SINCE = 2


def member_of(label: str) -> str:
    return urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_OID, label).bytes).decode().rstrip("=")


def share_group(s: Script, *topics: Topic, label: str = "g") -> str:
    """A group that begins at the start of its topics; their state is there when its member is assigned them."""
    group = new_group(s, label)
    reset = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [reset]}
    s.tell({"resources": [resource]}, api="incremental_alter_configs", version=1)
    s.await_applied()
    beat = {
        "group_id": group,
        "member_id": member_of(group),
        "member_epoch": 0,
        "subscribed_topic_names": [topic.name for topic in topics],
    }

    def is_assigned(tree: Any) -> bool:
        given = tree.get("assignment")
        return bool(given and len(given["topic_partitions"]) == len(topics))

    s.await_answer(lambda: s.tell(beat, api="share_group_heartbeat", version=1), is_assigned)
    return group


def acknowledged(topic: Topic, *acks: tuple[int, int, list[int]], partition: int = 0) -> dict[str, Any]:
    """(first offset, last offset, types)"""
    entry = {
        "partition_index": partition,
        "acknowledgement_batches": [
            {"first_offset": first, "last_offset": last, "acknowledge_types": types}
            for first, last, types in acks
        ],
    }
    return {"topic_id": topic.id, "partitions": [entry]}


def fetch(
    group: str | None, member: str | None, epoch: int, *topics: dict[str, Any], **more: Any
) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "share_session_epoch": epoch,
        "max_wait": WAIT_MS,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 100,
        "batch_size": 100,
        "topics": list(topics),
        "forgotten_topics_data": [],
        **more,
    }


def acknowledge(group: str, member: str, epoch: int, *topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "share_session_epoch": epoch,
        "topics": list(topics),
        **more,
    }


@case("share_fetch")
def records_under_locks(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 2, 3)
    group = share_group(s, t)
    m1, m2 = member_of("m1"), member_of("m2")
    s.ask("all of them", fetch(group, m1, 0, acknowledged(t)))
    s.ask("another member gets none", fetch(group, m2, 0, acknowledged(t), max_wait=0))
    s.ask("with acknowledgements", fetch(group, m1, 1, acknowledged(t, (0, 5, [ACCEPT])), max_wait=0))
    s.produce(t, batch(records(2)))
    s.ask("what came later", fetch(group, m2, 1))
    s.ask("not held", fetch(group, m1, 2, acknowledged(t, (6, 7, [ACCEPT])), max_wait=0))
    s.ask("accepted twice", fetch(group, m1, 3, acknowledged(t, (0, 5, [ACCEPT])), max_wait=0))


@case("share_fetch")
def released_records(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 1, 4)
    group, m1, m2 = share_group(s, t), member_of("m1"), member_of("m2")
    s.tell(fetch(group, m1, 0, acknowledged(t)))
    types = [ACCEPT, RELEASE, REJECT, GAP]
    s.ask("each its own way", fetch(group, m1, 1, acknowledged(t, (0, 3, types)), max_wait=0, max_records=0))
    s.ask("again", fetch(group, m2, 0, acknowledged(t)))


@case("share_fetch")
def sessions(s: Script) -> None:
    t = s.topic("x", 2)
    group, m = share_group(s, t), member_of("m1")
    s.ask("none", fetch(group, m, 1, max_wait=0))
    s.ask("none to close", fetch(group, m, -1, max_wait=0))
    s.ask("opened", fetch(group, m, 0, acknowledged(t), max_wait=0))
    s.ask("next epoch", fetch(group, m, 1, max_wait=0))
    s.ask("same epoch again", fetch(group, m, 1, max_wait=0))
    s.ask("epoch ahead", fetch(group, m, 7, max_wait=0))
    s.ask("opened again", fetch(group, m, 0, acknowledged(t), max_wait=0))
    s.ask("closed", fetch(group, m, -1, max_wait=0))
    s.ask("closed again", fetch(group, m, -1, max_wait=0))
    s.ask("acknowledges at first", fetch(group, m, 0, acknowledged(t, (0, 0, [ACCEPT])), max_wait=0))


@case("share_fetch")
def bad_requests(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 1, 1)
    group, m = share_group(s, t), member_of("m1")
    missing = Topic(s.name("missing"), UNKNOWN_ID)
    s.ask("no group", fetch(None, m, 0, acknowledged(t), max_wait=0))
    s.ask("no member", fetch(group, None, 0, acknowledged(t), max_wait=0))
    s.ask("empty member", fetch(group, "", 0, acknowledged(t), max_wait=0))
    s.ask("long member", fetch(group, "m" * 37, 0, acknowledged(t), max_wait=0))
    s.ask("unknown topic", fetch(group, m, 0, acknowledged(missing), max_wait=0))
    s.ask("unknown partition", fetch(group, m, 0, acknowledged(t, partition=5), max_wait=0))
    s.ask("no topics", fetch(group, m, 0, max_wait=0))
    s.ask("group without members", fetch(s.name("other"), m, 0, acknowledged(t), max_wait=1000))


@case("share_fetch", since=RENEW_SINCE)
def record_limit(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 1, 10)
    group = share_group(s, t)
    limited = {"share_acquire_mode": 1, "max_records": 3}
    s.ask("first", fetch(group, member_of("m1"), 0, acknowledged(t), **limited))
    s.ask("second", fetch(group, member_of("m2"), 0, acknowledged(t), **limited))


@case("share_fetch", since=RENEW_SINCE)
def renewals(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 1, 2)
    group, m = share_group(s, t), member_of("m1")
    s.tell(fetch(group, m, 0, acknowledged(t)))
    nothing = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    renewed = acknowledged(t, (0, 1, [RENEW]))
    s.ask("without saying so", fetch(group, m, 1, renewed, **nothing))
    s.ask("with limits of a fetch", fetch(group, m, 2, renewed, is_renew_ack=True))
    s.ask("renewed", fetch(group, m, 2, renewed, is_renew_ack=True, **nothing))
    s.ask("accepted then", fetch(group, m, 3, acknowledged(t, (0, 1, [ACCEPT])), max_wait=0))


@case("share_acknowledge")
def outcomes(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 1, 6)
    group, m = share_group(s, t), member_of("m1")
    s.ask("without a session", acknowledge(group, m, 1, acknowledged(t, (0, 0, [ACCEPT]))))
    s.tell(fetch(group, m, 0, acknowledged(t)), api="share_fetch")
    s.ask("accepted", acknowledge(group, m, 1, acknowledged(t, (0, 0, [ACCEPT]))))
    s.ask("accepted again", acknowledge(group, m, 2, acknowledged(t, (0, 0, [ACCEPT]))))
    s.ask("out of order", acknowledge(group, m, 3, acknowledged(t, (3, 3, [ACCEPT]), (2, 2, [ACCEPT]))))
    s.ask("upside down", acknowledge(group, m, 4, acknowledged(t, (3, 2, [ACCEPT]))))
    s.ask("no types", acknowledge(group, m, 5, acknowledged(t, (3, 3, []))))
    s.ask("too few types", acknowledge(group, m, 6, acknowledged(t, (1, 3, [ACCEPT, ACCEPT]))))
    s.ask("unknown type", acknowledge(group, m, 7, acknowledged(t, (1, 1, [7]))))
    s.ask("never delivered", acknowledge(group, m, 8, acknowledged(t, (5, 9, [ACCEPT]))))
    s.ask("far behind the end", acknowledge(group, m, 9, acknowledged(t, (50, 50, [ACCEPT]))))
    s.ask("no batches", acknowledge(group, m, 10, acknowledged(t)))
    s.ask("each its own way", acknowledge(group, m, 11, acknowledged(t, (1, 3, [ACCEPT, RELEASE, REJECT]))))
    s.ask("released before", acknowledge(group, m, 12, acknowledged(t, (2, 2, [ACCEPT]))))
    missing = Topic(s.name("missing"), UNKNOWN_ID)
    s.ask("unknown topic", acknowledge(group, m, 13, acknowledged(missing, (0, 0, [ACCEPT]))))
    s.ask("unknown partition", acknowledge(group, m, 14, acknowledged(t, (0, 0, [ACCEPT]), partition=4)))
    s.ask("first epoch", acknowledge(group, m, 0, acknowledged(t, (4, 4, [ACCEPT]))))
    s.ask("wrong epoch", acknowledge(group, m, 99, acknowledged(t, (4, 4, [ACCEPT]))))
    s.ask("last epoch", acknowledge(group, m, -1, acknowledged(t, (4, 4, [ACCEPT]))))
    s.ask("closed", acknowledge(group, m, 15, acknowledged(t, (5, 5, [ACCEPT]))))


@case("share_acknowledge", since=RENEW_SINCE)
def renewed_locks(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 1, 3)
    group, m = share_group(s, t), member_of("m1")
    s.tell(fetch(group, m, 0, acknowledged(t)), api="share_fetch")
    s.ask("without saying so", acknowledge(group, m, 1, acknowledged(t, (0, 2, [RENEW]))))
    s.ask("renewed", acknowledge(group, m, 2, acknowledged(t, (0, 2, [RENEW])), is_renew_ack=True))
    mixed = acknowledged(t, (0, 2, [RENEW, ACCEPT, RENEW]))
    s.ask("some of them", acknowledge(group, m, 3, mixed, is_renew_ack=True))
    s.ask("accepted then", acknowledge(group, m, 4, acknowledged(t, (0, 0, [ACCEPT]))))
