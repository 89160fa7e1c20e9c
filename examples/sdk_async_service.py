"""An asyncio service with the SDK: several things at once on one event loop, none of which holds up the others.

    python examples/sdk_async_service.py --input orders --output billed

One task handles orders, up to 20 at a time within a batch; another one says every few seconds how far behind the group is.
At least once: an order whose handling was cut short is handled again, so `bill` has to bear that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from tidemill import AsyncBatch, AsyncBatches, AsyncClient, Record

TOGETHER_MAX = 20


async def bill(record: Record) -> str:
    await asyncio.sleep(0.001)  # Here a service would ask another one.
    return f"billed {record.text()}"


async def handle(batch: AsyncBatch, output: str) -> None:
    places = asyncio.Semaphore(TOGETHER_MAX)

    async def handle_one(record: Record) -> None:
        async with places:
            batch.publish(output, await bill(record), record.key)

    async with asyncio.TaskGroup() as tasks:
        for record in batch:
            tasks.create_task(handle_one(record))


async def report(batches: AsyncBatches, pause_s: float) -> None:
    while True:
        await asyncio.sleep(pause_s)
        print(f"lag {sum((await batches.lag()).values())}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--input", default="orders", metavar="TOPIC")
    parser.add_argument("--output", default="billed", metavar="TOPIC")
    parser.add_argument("--group", default="billing")
    parser.add_argument("--report-s", type=float, default=5.0)
    options = parser.parse_args()
    async with (
        AsyncClient(options.bootstrap) as client,
        client.consume(options.input, options.group) as batches,
    ):
        reporting = asyncio.create_task(report(batches, options.report_s))
        try:
            async for batch in batches:
                await handle(batch, options.output)
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
