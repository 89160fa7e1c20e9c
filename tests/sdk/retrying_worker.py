"""A worker in a process of its own that fails at poison, and can be told to kill itself on the way."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from typing import Any

from tidemill import Client
from tidemill.sdk.consuming.guarantees import AtLeastOnceWithRetries
from tidemill.sdk.publishing.transactions import Transactions


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def after(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        for publication in call(*arguments):
            publication.result()
        die()

    return called


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("dead_letters")
    parser.add_argument("--die", choices=["in-handler", "before-commit", "in-transaction"])
    options = parser.parse_args()
    if options.die == "before-commit":
        Transactions.commit = die  # type: ignore[method-assign]
    elif options.die == "in-transaction":
        kind: Any = AtLeastOnceWithRetries
        kind._publish_replacements = after(kind._publish_replacements)
    with (
        Client(options.bootstrap, fetch_wait_max_ms=50, session_timeout_ms=6_000) as client,
        client.consume(
            options.topic,
            group=options.topic,
            instance="one",
            retries=2,
            backoff="10ms",
            dead_letters=options.dead_letters,
            idle_timeout_s=1.0,
        ) as batches,
    ):
        for batch in batches:
            for record in batch:
                with batch.attempt(record):
                    if record.value == b"poison":
                        if options.die == "in-handler":
                            die()
                        raise RuntimeError("cannot be eaten")


if __name__ == "__main__":
    main()
