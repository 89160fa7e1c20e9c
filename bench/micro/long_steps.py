"""How long one request holds the broker's event loop, for every list of every API.

For each API and each list of its request, one request with very many entries in that list goes to a real broker. The names
in it are unknown, or they are those of topics that exist. The time is that of the longest step of the loop until the answer
is there, in processor time of the loop's thread: what else the machine does hardly counts.

    python -m bench.micro.long_steps                             this version
    python -m bench.micro.long_steps ../older . --json           source trees to compare, one after the other
    python -m bench.micro.long_steps --only OffsetCommit --where 5   and where the steps over 5 ms spend their time
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import runpy
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import uvloop

from bench.brokers import Tidemill
from bench.connection import Connection, answers_api_versions, create_topics, create_topics_only

ENTRIES = 20_000
TOPICS = 500
PARTITIONS = 500
WIDE_TOPIC = "wide"
ANSWER_SECONDS_MAX = 120.0
_FRAMES_SHOWN = 4
_REPORTED_MS = 1.0
# These end the session of the broker or need another kind of connection.
_LEFT_OUT = {"SaslHandshake", "SaslAuthenticate", "Envelope", "RemoveRaftVoter"}
# Strings that are not the name of a topic or a group, and numbers that are not 0.
_VALUES = {
    "protocol_type": "consumer",
    "resource_type": 2,
    "acks": -1,
    "replica_id": -1,
    "isolation_level": 0,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "max_wait_ms": 100,
    "num_partitions": 1,
    "replication_factor": 1,
    "timeout_ms": 10_000,
    "generation_id_or_member_epoch": -1,
    "leader_epoch": -1,
    "current_leader_epoch": -1,
    "validate_only": False,
    "session_epoch": -1,
}


# -- the broker -------------------------------------------------------------------------------------------------


class StepTimer:
    """Measures every step of the event loop of this process, and writes the long ones to a file."""

    def __init__(self, report: TextIO, where_ms: float) -> None:
        self._report = report
        self._where_s = where_ms / 1000
        self._began_s = 0.0
        self._thread_id = 0
        self._seen: Counter[str] = Counter()

    def install(self) -> None:
        run_plain = asyncio.Handle._run

        def run(handle: asyncio.Handle) -> None:
            self._thread_id = threading.get_ident()
            self._began_s = time.perf_counter()
            began_s = time.thread_time()
            run_plain(handle)
            took_ms = (time.thread_time() - began_s) * 1000
            self._began_s = 0.0
            if took_ms >= _REPORTED_MS:
                print(f"{took_ms:.2f}", json.dumps(self._seen.most_common(6)), file=self._report, flush=True)
            self._seen.clear()

        setattr(asyncio.Handle, "_run", run)  # noqa: B010
        if self._where_s:
            sys.setswitchinterval(0.0005)
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(0.001)
            began_s = self._began_s
            if not began_s or time.perf_counter() - began_s < self._where_s:
                continue
            frame = sys._current_frames().get(self._thread_id)
            named: list[str] = []
            while frame is not None and len(named) < _FRAMES_SHOWN:
                named.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")
                frame = frame.f_back
            self._seen[" < ".join(named)] += 1


class TimedBroker(Tidemill):
    """A broker of one source tree that reports its long steps."""

    def __init__(self, tree: Path, data_dir: Path, where_ms: float) -> None:
        super().__init__(data_dir)
        self._tree = tree
        self._where_ms = where_ms
        self._report_path = data_dir / "steps"
        self._position = 0

    @property
    def program(self) -> list[str]:
        here = str(Path(__file__).resolve().parents[2])
        path = f"PYTHONPATH={self._tree / 'src'}:{here}"
        timed = ["-m", "bench.micro.long_steps", "--timed", str(self._report_path), str(self._where_ms)]
        return ["env", path, sys.executable, *timed]

    @property
    def options(self) -> list[str]:
        return ["--set", "log.cleaner.enable=false"]

    def longest(self) -> tuple[float, list[tuple[str, int]]]:
        """The longest step since the last call in milliseconds, and where it was."""
        with self._report_path.open() as report:
            report.seek(self._position)
            written = report.read()
        self._position += len(written)
        steps = [line.split(" ", 1) for line in written.splitlines()]
        if not steps:
            return 0.0, []
        longest = max(steps, key=lambda step: float(step[0]))
        return float(longest[0]), json.loads(longest[1])


def serve_timed(arguments: list[str]) -> None:
    report_path, where_ms, *command = arguments
    StepTimer(open(report_path, "a", buffering=1), float(where_ms)).install()  # noqa: SIM115
    # The broker's loop is in C and shows no steps. asyncio's own does the same in Python.
    uvloop.run = asyncio.run  # type: ignore[assignment]
    sys.argv = ["tidemill", *command]
    runpy.run_module("tidemill", run_name="__main__")


# -- the requests -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    api: str
    # The list that is long, and whether the topics in it exist.
    path: str
    is_known: bool
    frame: bytearray

    @property
    def name(self) -> str:
        return f"{self.api} {self.path} {'known' if self.is_known else 'unknown'}"


class Filler:
    """Makes requests with one long list."""

    def __init__(self, version: int, long_path: str, is_known: bool, topic_ids: list[bytes]) -> None:
        self._version = version
        self._long_path = long_path
        self._is_known = is_known
        self._topic_ids = topic_ids
        # Entries that differ in nothing but a partition are those of one topic.
        self._is_inner = "." in long_path

    def struct(self, cls: Any, path: str, number: int) -> Any:
        from tidemill.protocol.declarations import field_specs

        specs = [spec for spec in field_specs(cls) if spec.is_in(self._version) and spec.tag is None]
        values = {spec.name: self._value(spec.kind, spec, path, number) for spec in specs}
        return cls(**{name: value for name, value in values.items() if value is not None})

    def _value(self, kind: Any, spec: Any, path: str, number: int) -> Any:
        from tidemill.protocol.declarations import ArrayOf, Primitive

        name = spec.name
        here = f"{path}.{name}" if path else name
        if isinstance(kind, ArrayOf):
            count = ENTRIES if here == self._long_path else 1
            return [self._element(kind.element, here, each if count > 1 else number) for each in range(count)]
        if not isinstance(kind, Primitive):
            return self.struct(kind, here, number)
        if name in _VALUES:
            return _VALUES[name]
        if kind.name == "string":
            return self._text(name, number)
        if kind.name == "uuid":
            return self._topic_ids[self._topic(number)] if self._is_known else (number + 1).to_bytes(16)
        if (kind.name == "int32" and "partition" in name) or name == "index":
            return number % PARTITIONS if self._is_inner and self._is_known else number * self._is_inner
        return None

    def _element(self, kind: Any, here: str, number: int) -> Any:
        from tidemill.protocol.declarations import Primitive

        if not isinstance(kind, Primitive):
            return self.struct(kind, here, number)
        if kind.name == "string":
            return self._text(here, number)
        if kind.name == "uuid":
            return self._topic_ids[self._topic(number)] if self._is_known else (number + 1).to_bytes(16)
        # The numbers of partitions, or of kinds of resources, which are bytes.
        return number % (100 if kind.name == "int8" else PARTITIONS if self._is_known else ENTRIES)

    def _topic(self, number: int) -> int:
        return 0 if self._is_inner else 1 + number % TOPICS

    def _text(self, name: str, number: int) -> str | None:
        if name in ("client_id", "member_id", "transactional_id", "rack_id", "group_instance_id"):
            return None
        if self._is_known and "group" not in name:
            return _topic_name(self._topic(number))
        return "name" if self._is_inner and name == "name" else f"name-{number}"


def _topic_name(number: int) -> str:
    return f"topic-{number - 1}" if number else WIDE_TOPIC


def cases(only: str, topic_ids: list[bytes]) -> Iterator[Case]:
    """One request for each list of each API that a broker's listener serves."""
    from tidemill.broker.requests import handlers  # noqa: F401  fills the table
    from tidemill.broker.requests.api_table import TABLE, Scope
    from tidemill.protocol.frames import request_frame

    for api in sorted(TABLE.values(), key=lambda each: each.key):
        if not api.scope & Scope.BROKER or api.name in _LEFT_OUT or only.lower() not in api.name.lower():
            continue
        # Versions in which a client, not a node, sends it.
        version = 3 if api.name == "AddPartitionsToTxn" else api.versions.max
        for path in _lists(api.request, version):
            for is_known in (False, True):
                message = Filler(version, path, is_known, topic_ids).struct(api.request, "", 0)
                if hasattr(message, "transactional_id") and api.name != "Produce":
                    message.transactional_id = "transaction"
                if api.name == "AddPartitionsToTxn":
                    message.v3_and_below_transactional_id = "transaction"
                yield Case(api.name, path, is_known, bytearray(request_frame(message, version, 1, "bench")))


def _lists(cls: Any, version: int, path: str = "") -> Iterator[str]:
    from tidemill.protocol.declarations import ArrayOf, Primitive, field_specs

    for spec in field_specs(cls):
        here = f"{path}.{spec.name}" if path else spec.name
        if not spec.is_in(version) or spec.tag is not None or isinstance(spec.kind, Primitive):
            continue
        if not isinstance(spec.kind, ArrayOf):
            yield from _lists(spec.kind, version, here)
            continue
        yield here
        if not isinstance(spec.kind.element, Primitive):
            yield from _lists(spec.kind.element, version, here)


# -- measuring --------------------------------------------------------------------------------------------------


def topic_ids_of(bootstrap: str) -> list[bytes]:
    from tidemill.protocol.api.cluster import MetadataRequest, MetadataResponse
    from tidemill.protocol.frames import parse_response, request_frame

    with Connection(bootstrap, ANSWER_SECONDS_MAX) as connection:
        frame = bytearray(request_frame(MetadataRequest(topics=None), 12, 1, "bench"))
        _, described = parse_response(MetadataResponse, 12, connection.call(frame))
    by_name = {topic.name: topic.topic_id for topic in described.topics}
    return [by_name[_topic_name(number)] for number in range(TOPICS + 1)]


def start_coordinators(bootstrap: str, topic_id: bytes) -> None:
    """Waits until groups, transactions and share groups are coordinated."""
    from tidemill.protocol.api.cluster import FindCoordinatorRequest, FindCoordinatorResponse
    from tidemill.protocol.frames import parse_response, request_frame

    share_key = f"name-0:{base64.urlsafe_b64encode(topic_id).decode().rstrip('=')}:0"
    with Connection(bootstrap, ANSWER_SECONDS_MAX) as connection:
        for key_type, key in enumerate(("name-0", "transaction", share_key)):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            frame = bytearray(request_frame(request, 6, 1, "bench"))
            while True:
                _, found = parse_response(FindCoordinatorResponse, 6, connection.call(frame))
                if not found.coordinators[0].error_code:
                    break
                time.sleep(0.05)


def measure(tree: Path, only: str, where_ms: float) -> dict[str, float]:
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder,
        TimedBroker(tree.resolve(), Path(folder), where_ms) as broker,
    ):
        create_topics(broker.bootstrap, [WIDE_TOPIC], PARTITIONS)
        create_topics_only(broker.bootstrap, [_topic_name(number + 1) for number in range(TOPICS)], 1, {})
        topic_ids = topic_ids_of(broker.bootstrap)
        start_coordinators(broker.bootstrap, topic_ids[0])
        for case in cases(only, topic_ids):
            broker.longest()
            with Connection(broker.bootstrap, ANSWER_SECONDS_MAX) as connection:
                try:
                    answer_bytes = len(connection.call(case.frame))
                except (ConnectionError, TimeoutError) as error:
                    print(f"{case.name}: {error!r}", file=sys.stderr)
                    answer_bytes = 0
            # The step that sent the answer is over when the next request is answered.
            answers_api_versions(broker.bootstrap)
            took_ms, where = broker.longest()
            found[case.name] = took_ms
            print(
                f"{took_ms:8.1f} ms  {case.name}  ({len(case.frame)} → {answer_bytes} bytes)", file=sys.stderr
            )
            for place, count in where:
                print(f"            {count:4} {place}", file=sys.stderr)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--timed"]:
        serve_timed(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tree", nargs="*", type=Path, default=[Path()], help="a source tree; default: this one"
    )
    parser.add_argument("--only", default="", help="APIs with this in their names")
    parser.add_argument(
        "--where", type=float, default=0.0, help="show where steps longer than this many ms are"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {str(tree): measure(tree, options.only, options.where) for tree in options.tree}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name in sorted({name for each in found.values() for name in each}):
        print("  ".join(f"{each.get(name, 0.0):8.1f}" for each in found.values()), name)


if __name__ == "__main__":
    main()
