"""What a Kafka without authorizer, quotas, SCRAM users and further log directories answers about them."""

from __future__ import annotations

from typing import Any

from bench.diff.script import Script, case

ANY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
ACL = {
    "resource_type": 2,
    "resource_name": "x",
    "resource_pattern_type": 3,
    "principal": "User:eve",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


@case("describe_acls")
def acls(s: Script) -> None:
    s.ask("any", ANY)


@case("create_acls")
def new_acls(s: Script) -> None:
    s.ask("two", {"creations": [ACL, {**ACL, "resource_name": "y"}]})
    s.ask("none", {"creations": []})


@case("delete_acls")
def acls_to_delete(s: Script) -> None:
    s.ask("two", {"filters": [ANY, {**ANY, "resource_type_filter": 2}]})
    s.ask("none", {"filters": []})


@case("describe_client_quotas")
def quotas(s: Script) -> None:
    def ask(label: str, *components: tuple[str, int, str | None], strict: bool = False) -> None:
        entries = [
            {"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components
        ]
        s.ask(label, {"components": entries, "strict": strict})

    ask("all")
    ask("one user", ("user", 0, "eve"))
    ask("default user", ("user", 1, None))
    ask("any user, strict", ("user", 2, None), strict=True)
    ask("ip", ("ip", 0, "127.0.0.1"))
    ask("user and client", ("user", 2, None), ("client-id", 2, None))
    ask("ip and user", ("ip", 0, "127.0.0.1"), ("user", 2, None))
    ask("twice", ("user", 2, None), ("user", 2, None))
    ask("empty type", ("", 2, None))
    ask("unknown type", ("planet", 2, None))
    ask("unknown match", ("user", 9, None))
    ask("exact without a name", ("user", 0, None))
    ask("default with a name", ("user", 1, "eve"))


@case("describe_user_scram_credentials")
def scram(s: Script) -> None:
    s.ask("all", {"users": None})
    s.ask("none", {"users": []})
    s.ask("missing", {"users": [{"name": "eve"}]})
    s.ask("two", {"users": [{"name": "eve"}, {"name": "adam"}]}, keep=_by_user)
    s.ask("twice", {"users": [{"name": "eve"}, {"name": "eve"}]})
    s.ask("empty name", {"users": [{"name": ""}]})


def _by_user(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "results": sorted(tree["results"], key=lambda each: str(each["user"]))}


@case("alter_replica_log_dirs")
def move(s: Script) -> None:
    t = s.topic("x", 2)
    described = s.tell({"topics": [{"topic": t.name, "partitions": [0]}]}, api="describe_log_dirs", version=2)
    own = described["results"][0]["log_dir"]

    def ask(label: str, *moves: tuple[str, str, list[int]]) -> None:
        dirs = [{"path": path, "topics": [{"name": name, "partitions": ids}]} for path, name, ids in moves]
        s.note(label, _sorted(s.tell({"dirs": dirs})))

    ask("own", (own, t.name, [0, 1]))
    ask("another", ("/no/such/dir", t.name, [0]))
    ask("relative", ("data", t.name, [0]))
    ask("empty path", ("", t.name, [0]))
    ask("unknown partition", (own, t.name, [9]))
    ask("unknown topic", (own, s.name("missing"), [0]))
    ask("unknown topic, another", ("/no/such/dir", s.name("missing"), [0]))
    ask("two directories", (own, t.name, [0]), ("/no/such/dir", t.name, [1]))
    s.ask("nothing", {"dirs": []})


def _sorted(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    results = [
        {**each, "partitions": sorted(each["partitions"], key=lambda part: int(part["partition_index"]))}
        for each in tree["results"]
    ]
    return {**tree, "results": sorted(results, key=lambda each: str(each["topic_name"]))}


@case("list_config_resources")
def config_resources(s: Script) -> None:
    if s.version == 0:
        s.ask("client metrics", {}, keep=lambda tree: _listed(s, tree))
        return
    s.topic("x")
    for label, kinds in {
        "all": [],
        "topics": [2],
        "brokers": [4],
        "loggers": [8],
        "client metrics": [16],
        "groups": [32],
        "topics twice": [2, 2],
        "two types": [2, 4],
        "unknown type": [0],
        "type that does not exist": [77],
        "good and unknown": [2, 77],
    }.items():
        s.ask(label, {"resource_types": kinds}, keep=lambda tree: _listed(s, tree))


def _listed(s: Script, tree: dict[str, Any]) -> dict[str, Any]:
    """Of topics, groups and subscriptions those of this script; the order is that of a hash map."""
    own = [
        each
        for each in tree["config_resources"]
        if each.get("resource_type") in (4, 8) or str(each["resource_name"]).startswith(s.name(""))
    ]
    shown = sorted(own, key=lambda each: (str(each.get("resource_type")), str(each["resource_name"])))
    return {**tree, "config_resources": shown}


@case("update_features")
def features(s: Script) -> None:
    def ask(label: str, *updates: tuple[str, int, int], **more: Any) -> None:
        """The upgrade type of version 0 is a flag."""
        s.ask(
            label,
            {
                "feature_updates": [
                    {
                        "feature": name,
                        "max_version_level": level,
                        "allow_downgrade": kind > 1,
                        "upgrade_type": kind,
                    }
                    for name, level, kind in updates
                ],
                **more,
            },
        )

    ask("the level that it has", ("group.version", 1, 1))
    ask("validate only", ("group.version", 1, 1), validate_only=True)
    ask("unknown feature", ("no.such.feature", 1, 1))
    ask("too high", ("group.version", 99, 1))
    ask("negative", ("group.version", -1, 1))
    ask("lower without leave", ("transaction.version", 1, 1))
    ask("metadata version too high", ("metadata.version", 999, 1))
    ask("good and bad", ("group.version", 1, 1), ("no.such.feature", 1, 1))
    ask("nothing")
    if s.version:
        ask("unknown upgrade type", ("group.version", 1, 0))
