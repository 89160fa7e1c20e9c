"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.diff.script import Script, case
from bench.diff.transactions import (
    TransactionalProducer,
    await_coordinator,
    in_every_state,
    new_producer,
    sorted_topics,
)

DURATION_SINCE = 1
PATTERN_SINCE = 2
NEVER_GIVEN_OUT = 987_654_321


@case("describe_transactions")
def describe_transactions(s: Script) -> None:
    t = s.topic("t", 3)
    await_coordinator(s, s.name("tx"))

    def ask(label: str, *ids: str) -> None:
        s.ask(label, {"transactional_ids": list(ids)}, keep=sorted_topics)

    ask("unknown", s.name("unknown"))
    ask("empty id", "")
    ask("none")
    known = dict(in_every_state(s, t))
    for label, p in known.items():
        ask(label, p.transactional_id)
    ask("all", *(p.transactional_id for p in known.values()))
    one = known["ongoing"]
    ask("known and unknown", one.transactional_id, s.name("unknown"))
    ask("the same twice", one.transactional_id, one.transactional_id)
    one.add(t, 2, 1)
    ask("more partitions", one.transactional_id)
    newer = new_producer(s, "newer", is_newer=True, timeout_ms=1234)
    newer.begin(t)
    ask("of a newer client", newer.transactional_id)
    newer.end()
    newer.await_end()
    ask("of a newer client, committed", newer.transactional_id)


def _of(s: Script) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Only the transactional ids of this script: the broker has others."""

    def keep(tree: dict[str, Any]) -> dict[str, Any]:
        listed = [one for one in tree["transaction_states"] if one["transactional_id"].startswith(s.name(""))]
        return {
            **tree,
            "transaction_states": sorted(listed, key=lambda one: str(one["transactional_id"])),
            "unknown_state_filters": sorted(tree["unknown_state_filters"]),
        }

    return keep


@case("list_transactions")
def list_transactions(s: Script) -> None:
    t = s.topic("t")
    await_coordinator(s, s.name("tx"))

    def ask(label: str, **filters: Any) -> None:
        s.ask(label, {"duration_filter": -1, **filters}, keep=_of(s))

    ask("nothing there")
    known = dict(in_every_state(s, t))
    ask("all")
    states = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
    for state in (*states, "PrepareEpochFence", "Nonsense", "ongoing", ""):
        ask(f"state {state!r}", state_filters=[state])
    ask("two states", state_filters=["Ongoing", "Empty"])
    ask("known and unknown states", state_filters=["Ongoing", "Nonsense", "Other"])
    ask("producer", producer_id_filters=[known["ongoing"].id])
    ask("two producers", producer_id_filters=[known["ongoing"].id, known["empty"].id])
    ask("unknown producer", producer_id_filters=[NEVER_GIVEN_OUT])
    ask("producer in another state", producer_id_filters=[known["ongoing"].id], state_filters=["Empty"])
    if s.version >= DURATION_SINCE:
        for duration_ms in (-1, 0, -5, 600_000):
            ask(f"duration {duration_ms}", duration_filter=duration_ms)
    if s.version >= PATTERN_SINCE:
        _by_pattern(s, known, ask)


def _by_pattern(s: Script, known: dict[str, TransactionalProducer], ask: Callable[..., None]) -> None:
    ask("pattern, all", transactional_id_pattern=".*")
    ask("pattern, one", transactional_id_pattern=f".*{known['ongoing'].name}")
    ask("pattern, two", transactional_id_pattern=f"{s.name('')}(empty|committed)")
    ask("pattern, part of a name", transactional_id_pattern="ongoing")
    ask("pattern, empty", transactional_id_pattern="")
    ask("pattern, nothing", transactional_id_pattern="no such thing")
    ask("pattern, invalid", transactional_id_pattern="(")
    ask("pattern and state", transactional_id_pattern=".*", state_filters=["Ongoing"])
