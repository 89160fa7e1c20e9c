"""A consumer that holds a message, has a forked child as pools do, and waits to be killed."""

from __future__ import annotations

import os
import signal
import sys

from kombu import Connection, Consumer, Queue

import tidemill.celery


def main() -> None:
    url, queue = sys.argv[1:]
    assert url.startswith(tidemill.celery.Transport.driver_type)
    messages: list[object] = []
    with Connection(url) as connection, Consumer(connection, [Queue(queue)], on_message=messages.append):
        while not messages:
            connection.drain_events()
        child = os.fork()
        if child == 0:
            # As long as the test lets it.
            sys.stdin.read()
            os._exit(0)
        print(child, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
