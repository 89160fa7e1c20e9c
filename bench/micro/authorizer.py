"""What a decision of the authorizer costs: with few ACLs and with many, decided before and for the first time."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from tidemill.security.acls import AclBinding, Operation, PatternType, Permission, Resource, ResourceType
from tidemill.security.authorizer import Authorizer
from tidemill.security.principals import Principal

RULES = (10, 10_000)
ROUNDS = 7
HOST = "10.1.2.3"


def rules(count: int) -> list[AclBinding]:
    """Literal and prefixed rules of as many topics and users; one in twenty denies."""
    rng = random.Random(count)
    return [
        AclBinding(
            ResourceType.TOPIC,
            f"team-{number}." if number % 4 == 0 else f"team-{number}.orders",
            PatternType.PREFIXED if number % 4 == 0 else PatternType.LITERAL,
            f"User:user-{number % 500}",
            "*" if number % 3 else HOST,
            rng.choice((Operation.READ, Operation.WRITE, Operation.ALL)),
            Permission.DENY if number % 20 == 19 else Permission.ALLOW,
        )
        for number in range(count)
    ]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(count: int, requests: int) -> dict[str, float]:
    """Microseconds of one decision, the median of some rounds."""
    bindings = rules(count)
    made = statistics.median(_seconds(lambda: Authorizer(bindings)) for _ in range(3))
    asked = [
        (
            Principal.user(f"user-{number % 500}"),
            Resource(ResourceType.TOPIC, f"team-{number % count}.orders"),
        )
        for number in range(requests)
    ]
    cold, warm = [], []
    for _ in range(ROUNDS):
        authorizer = Authorizer(bindings)

        def decide(authorizer: Authorizer = authorizer) -> None:
            for principal, resource in asked:
                authorizer.authorize(principal, HOST, Operation.WRITE, resource)

        cold.append(_seconds(decide))
        warm.append(_seconds(decide))
    return {
        "first": statistics.median(cold) / requests * 1e6,
        "cached": statistics.median(warm) / requests * 1e6,
        "made_ms": made * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.authorizer", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="different decisions in a round")
    options = parser.parse_args()
    print("ACLs    decided before µs   first time µs   the authorizer is made ms")
    for count in RULES:
        found = measure(count, options.requests)
        print(f"{count:6,}{found['cached']:20.2f}{found['first']:16.2f}{found['made_ms']:28.1f}")


if __name__ == "__main__":
    main()
