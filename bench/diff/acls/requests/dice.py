"""What the random requests have in common: the names at the brokers, the dice, and the table of APIs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TOPICS = ("a", "a.b", "ab", "b")
GHOST_TOPICS = ("a.ghost", "c")
GROUPS = ("g", "g.1", "ga")
CONSUMER_GROUP = "gc"
GHOST_GROUPS = ("g.ghost", "h")
TRANSACTIONAL_IDS = ("t", "t.1", "u")
OPEN_TRANSACTION = "t.open"
TOPIC_CONFIG, BROKER_CONFIG, LOGGER_CONFIG, METRICS_CONFIG, GROUP_CONFIG = 2, 4, 8, 16, 32
NODE_ID = 1
UNKNOWN_PRODUCER = 999_999
TRANSACTIONAL_BATCH = 0x10


@dataclass(frozen=True)
class TopicId:
    """Stands for the id that a topic has at the broker that gets the request."""

    name: str


class Dice(random.Random):
    """What is random in a request, and the version that it has."""

    version = 0

    def topics(self, most: int = 3) -> list[str]:
        return self.sample((*TOPICS, *GHOST_TOPICS), self.randint(1, most))

    def group(self) -> str:
        return self.choice((*GROUPS, *GHOST_GROUPS))

    def transactional_id(self) -> str:
        return self.choice(TRANSACTIONAL_IDS)

    def some(self, *choices: Any) -> list[Any]:
        return self.sample(choices, self.randint(1, min(3, len(choices))))

    def toss(self) -> bool:
        return self.random() < 0.5


Ask = Callable[[Dice], dict[str, Any]]


class Asks(dict[str, Ask]):
    """The APIs of one family by name, each with the function that fills in a request."""

    def add(self, ask: Ask) -> Ask:
        self[ask.__name__] = ask
        return ask
