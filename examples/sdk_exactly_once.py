"""Read, transform, write, exactly once: with the SDK.

    python examples/sdk_exactly_once.py --input orders --output shouted --name one

The same as `consume_transform_produce_confluent.py`, whose rules are the SDK's here: each batch is a transaction that
holds what the batch publishes and the offsets that were read for it. Asking for the next batch commits it, an exception
aborts it. Kill it at any moment and start it again with the same name: for readers of committed records nothing is
missing, and nothing is there twice.
"""

from __future__ import annotations

import argparse
import sys

from tidemill import Client, ClientError, stop_on_sigterm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--input", default="orders", metavar="TOPIC")
    parser.add_argument("--output", default="shouted", metavar="TOPIC")
    parser.add_argument("--group", default="shouting")
    parser.add_argument("--name", default="one", help="of this instance; each running one needs its own")
    options = parser.parse_args()
    stop_on_sigterm()
    try:
        with (
            Client(options.bootstrap) as client,
            client.consume(
                options.input, options.group, guarantee="exactly-once", instance=options.name
            ) as batches,
        ):
            for batch in batches:
                for record in batch:
                    batch.publish(options.output, record.text().upper(), record.key)
    except KeyboardInterrupt:
        return 0
    except ClientError as failure:
        print(f"ends: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
