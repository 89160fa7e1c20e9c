"""What a request costs the broker in instructions of its own process, counted by Valgrind.

Instructions do not depend on what else the machine does: two runs of the same code differ by about 1 %, where seconds of
processor time differ by 20 %. So this shows small changes of the hot path. It does not see the kernel's part.

    python -m bench.micro.instructions                       this version
    python -m bench.micro.instructions ../older . --json     source trees to compare, one after the other
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import frames
from bench.brokers import Tidemill
from bench.cases import topic
from bench.connection import Connection
from bench.raw_loads import send_pipelined

IN_FLIGHT_MAX = 5
PARTITIONS = 50
CONNECTION_SECONDS_MAX = 300
FETCH_BYTES = BATCH_BYTES = 64 << 10
_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)

Load = Callable[[int], None]


class CountedBroker(Tidemill):
    """A broker of one source tree under Valgrind, which counts on demand."""

    def __init__(self, tree: Path, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._tree = tree
        self._counts = data_dir / "counts"

    @property
    def program(self) -> list[str]:
        valgrind = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            f"--callgrind-out-file={self._counts}",
        ]
        return ["env", f"PYTHONPATH={self._tree / 'src'}", *valgrind, sys.executable, "-m", "tidemill"]

    def count(self, load: Load, requests: int) -> int:
        """Instructions of one request of a load."""
        load(requests // 4)
        self._control("--instr=on")
        self._control("--zero")
        load(requests)
        self._control("--dump")
        self._control("--instr=off")
        dumps = self._counts.parent.glob(f"{self._counts.name}.*")
        newest = max(dumps, key=lambda path: int(path.suffix[1:]))
        total = _TOTAL.search(newest.read_text())
        assert total is not None, f"{newest} has no total"
        return int(total[1]) // requests

    def _control(self, command: str) -> None:
        subprocess.run(["callgrind_control", command, str(self.pid)], check=True, capture_output=True)


def loads(connection: Connection, name: str) -> Iterator[tuple[str, int, Load]]:
    """Each load with its number of requests. The last one reads what the one before it has written."""
    batch = frames.record_batch([bytes(100)])

    def produce(partitions: int, in_flight_max: int) -> Load:
        request = frames.produce_request(name, dict.fromkeys(range(partitions), batch), 1)
        return lambda count: send_pipelined(connection, itertools.repeat(request, count), in_flight_max)

    def produce_full(count: int) -> None:
        full, _ = frames.full_batch(BATCH_BYTES, bytes(1000))
        request = frames.produce_request(name, {0: full}, 1)
        send_pipelined(connection, itertools.repeat(request, count), IN_FLIGHT_MAX)

    def fetch(count: int) -> None:
        for _ in range(count):
            connection.call(frames.fetch_request(name, 0, FETCH_BYTES))

    yield "one record, one at a time", 1000, produce(1, 1)
    yield "one record, 5 in flight", 1000, produce(1, IN_FLIGHT_MAX)
    yield "one record in each of 10 partitions", 200, produce(10, IN_FLIGHT_MAX)
    yield "one record in each of 50 partitions", 100, produce(PARTITIONS, IN_FLIGHT_MAX)
    yield "a batch of 64 KB", 200, produce_full
    yield "a fetch of 64 KB", 300, fetch


def measure(tree: Path) -> dict[str, int]:
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder,
        CountedBroker(tree.resolve(), Path(folder)) as broker,
        topic(broker, PARTITIONS) as name,
        Connection(broker.bootstrap, CONNECTION_SECONDS_MAX) as connection,
    ):
        return {what: broker.count(load, count) for what, count, load in loads(connection, name)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tree", nargs="*", type=Path, default=[Path()], help="a source tree; default: this one"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("callgrind_control") is None:
        sys.exit("Valgrind is needed: apt-get install valgrind")
    counted = {str(tree): measure(tree) for tree in options.tree}
    if options.json:
        print(json.dumps(counted, indent=2))
        return
    for what in next(iter(counted.values())):
        numbers = "".join(f"{counts[what]:>14,}" for counts in counted.values())
        print(f"{what:<40}{numbers}")


if __name__ == "__main__":
    main()
