"""A loop in a process of its own, which can be told to kill itself in the middle of a batch."""

from __future__ import annotations

import argparse
import os
import signal

from tidemill import Client
from tidemill.sdk.publishing.publisher import Publication


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("guarantee")
    parser.add_argument("--die-at", type=int, default=-1, help="the offset that is not worked on any more")
    options = parser.parse_args()
    with (
        Client(options.bootstrap, fetch_wait_max_ms=50) as client,
        client.consume(
            options.input,
            group=options.input,
            guarantee=options.guarantee,
            instance="one",
            max_batch=10,
            linger_s=20,
            idle_timeout_s=0.3,
        ) as batches,
    ):
        for batch in batches:
            published: list[Publication] = []
            for record in batch:
                if record.offset == options.die_at:
                    for each in published:
                        each.result()
                    os.kill(os.getpid(), signal.SIGKILL)
                published.append(batch.publish(options.output, record.value))


if __name__ == "__main__":
    main()
