"""Random sets of ACLs over a few names that contain each other."""

from __future__ import annotations

import random
from typing import NamedTuple

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ALL, READ = 2, 3
OPERATIONS = {
    TOPIC: (3, 4, 5, 6, 7, 8, 10, 11),
    GROUP: (3, 6, 8, 10, 11),
    CLUSTER: (5, 7, 8, 9, 10, 11, 12),
    TRANSACTIONAL_ID: (4, 8, 15),
}
# Operations that need no resource of this type; a rule may name them all the same.
OTHER_OPERATIONS = (3, 4, 5, 6, 7, 8, 9, 12)
NAMES = {
    TOPIC: ("a", "a.b", "ab", "b", "a.ghost", "c", "*"),
    GROUP: ("g", "g.1", "ga", "gc", "g.ghost", "*"),
    CLUSTER: ("kafka-cluster",),
    TRANSACTIONAL_ID: ("t", "t.1", "t.open", "u", "*"),
}
PREFIXES = {
    TOPIC: ("a", "a.", "a.b", "b", "new-"),
    GROUP: ("g", "g.", "g.1"),
    CLUSTER: ("kafka-cluster", "kafka"),
    TRANSACTIONAL_ID: ("t", "t.", "u"),
}
USERS = ("alice", "bob", "carol")
PRINCIPALS = tuple(f"User:{name}" for name in USERS)
EVERYBODY = "User:*"
HOSTS = ("127.0.0.1", "127.0.0.2")
RULES_MAX = 14


class Rule(NamedTuple):
    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def __str__(self) -> str:
        kind = {TOPIC: "topic", GROUP: "group", CLUSTER: "cluster", TRANSACTIONAL_ID: "transactional id"}
        pattern = "prefixed " if self.resource_pattern_type == PREFIXED else ""
        permission = "ALLOW" if self.permission_type == ALLOW else "DENY"
        return (
            f"{permission} {self.principal} from {self.host} operation {self.operation} "
            f"on {pattern}{kind[self.resource_type]} {self.resource_name!r}"
        )


def random_rules(rng: random.Random) -> list[Rule]:
    return sorted({_random_rule(rng) for _ in range(rng.randint(1, RULES_MAX))})


def _random_rule(rng: random.Random) -> Rule:
    kind = rng.choices((TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID), (45, 20, 20, 15))[0]
    is_prefixed = kind != CLUSTER and rng.random() < 0.35
    name = rng.choice(PREFIXES[kind] if is_prefixed else NAMES[kind])
    roll = rng.random()
    operation = ALL if roll < 0.2 else rng.choice(OTHER_OPERATIONS if roll > 0.95 else OPERATIONS[kind])
    return Rule(
        kind,
        name,
        PREFIXED if is_prefixed else LITERAL,
        rng.choices((*PRINCIPALS, EVERYBODY, "Role:alice"), (30, 25, 20, 23, 2))[0],
        rng.choices(("*", *HOSTS, "10.0.0.1"), (65, 16, 16, 3))[0],
        operation,
        DENY if rng.random() < 0.22 else ALLOW,
    )
