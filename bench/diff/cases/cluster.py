"""DescribeCluster, DescribeTopicPartitions, DescribeLogDirs."""

from __future__ import annotations

from typing import Any

from bench.diff.script import Script, case


@case("describe_cluster")
def cluster(s: Script) -> None:
    s.ask("plain", {})
    s.ask("authorized operations", {"include_cluster_authorized_operations": True})
    if s.version >= 1:
        s.ask("brokers", {"endpoint_type": 1})
        s.ask("controllers", {"endpoint_type": 2})
        s.ask("neither", {"endpoint_type": 9})
    if s.version >= 2:
        s.ask("fenced brokers too", {"endpoint_type": 1, "include_fenced_brokers": True})
        s.ask("fenced controllers", {"endpoint_type": 2, "include_fenced_brokers": True})


@case("describe_topic_partitions")
def pages(s: Script) -> None:
    a, b = s.topic("a", 3), s.topic("b", 2)

    def request(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> dict[str, Any]:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        return {"topics": [{"name": n} for n in names], "response_partition_limit": limit, "cursor": at}

    s.ask("two topics", request(a.name, b.name))
    s.ask("in the other order", request(b.name, a.name))
    s.ask("topic twice", request(a.name, a.name))
    s.ask("unknown", request(s.name("missing")))
    s.ask("unknown beside good", request(s.name("missing"), a.name))
    s.ask("invalid name", request("not a name"))
    s.ask("empty name", request(""))
    for limit in (1, 2, 3, 4, 5):
        s.ask(f"limit {limit}", request(a.name, b.name, limit=limit))
    s.ask("limit 0", request(a.name, b.name, limit=0))
    s.ask("limit negative", request(a.name, b.name, limit=-1))
    s.ask("cursor inside the first", request(a.name, b.name, cursor=(a.name, 1)))
    s.ask("cursor at the second", request(a.name, b.name, cursor=(b.name, 0)))
    s.ask("cursor and limit", request(a.name, b.name, cursor=(a.name, 2), limit=2))
    s.ask("cursor beyond the partitions", request(a.name, b.name, cursor=(a.name, 9)))
    s.ask("cursor negative", request(a.name, b.name, cursor=(a.name, -1)))
    s.ask("cursor at an unknown topic", request(a.name, b.name, cursor=(s.name("aa"), 0)))
    s.ask("cursor behind all", request(a.name, b.name, cursor=(s.name("zz"), 0)))
    s.ask("all topics", request(), keep=lambda tree: _own(s, tree))


def _own(s: Script, tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "topics": [t for t in tree["topics"] if t["name"].startswith(s.name(""))]}


@case("describe_log_dirs")
def log_dirs(s: Script) -> None:
    t, empty = s.topic("x", 2), s.topic("empty")
    s.fill(t)

    def request(*topics: tuple[str, list[int]]) -> dict[str, Any]:
        return {"topics": [{"topic": name, "partitions": ids} for name, ids in topics]}

    def own(tree: dict[str, Any]) -> dict[str, Any]:
        """Of all topics those of this script, in no order, as Kafka walks a hash map."""
        results = []
        for result in tree["results"]:
            mine = [x for x in result["topics"] if x["name"].startswith(s.name(""))]
            mine = [{**x, "partitions": sorted(x["partitions"], key=_index)} for x in mine]
            results.append({**result, "topics": sorted(mine, key=lambda x: str(x["name"]))})
        return {**tree, "results": results}

    s.ask("some", request((t.name, [0, 1]), (empty.name, [0])), keep=own)
    s.ask("one partition", request((t.name, [0])), keep=own)
    s.ask("unknown topic", request((s.name("missing"), [0])), keep=own)
    s.ask("unknown partition", request((t.name, [9])), keep=own)
    s.ask("no partitions", request((t.name, [])), keep=own)
    s.ask("no topics", request(), keep=own)
    s.ask("all topics", {"topics": None}, keep=own)


def _index(partition: dict[str, Any]) -> int:
    return int(partition["partition_index"])
