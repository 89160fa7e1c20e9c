"""A worker in a process of its own: it does a few jobs, takes another one, and waits to be killed."""

from __future__ import annotations

import argparse
import signal

from tidemill import Client


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("count", type=int)
    options = parser.parse_args()
    with Client(options.bootstrap) as client, client.queue(options.topic, group=options.topic) as queue:
        for number, job in enumerate(queue):
            if number == options.count:
                signal.pause()
            job.done()
            print(job.text(), flush=True)


if __name__ == "__main__":
    main()
