"""One attack on one target, from the topics it needs to the report."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tests.wire.fuzz.attack import Attacker, Ledger
from tests.wire.fuzz.frames import FrameMaker
from tests.wire.fuzz.schemas import all_apis
from tests.wire.fuzz.sequences import converse
from tests.wire.fuzz.topics import prepare
from tests.wire.fuzz.values import Pools
from tests.wire.fuzz.watchdog import Finding, Target, Watchdog

# A rebalance ends soon whatever a member asked for, so that an answer is always due soon.
QUICK_GROUPS: Mapping[str, str] = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.max.session.timeout.ms": "2000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
_LOOK_EVERY_S = 0.5
_SAY_EVERY_S = 60.0
_PEER = re.compile(r"127\.\d+\.\d+\.\d+:(\d+)")
_SUSPECTS_SHOWN = 16


@dataclass(frozen=True)
class Size:
    """How much of an attack: connections at each listener, conversations at each broker."""

    connections: int = 24
    controller_connections: int = 4
    conversations: int = 3


@dataclass
class Campaign:
    target: Target
    seed: int
    frames_max: int = 1 << 40
    seconds: float = 1e9
    size: Size = Size()
    p99_ms_max: float | None = None
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.pools = Pools()
        self.watchdog = Watchdog(self.target, p99_ms_max=self.p99_ms_max)
        self.ledger = Ledger(self.seed, self.frames_max, self._is_over)
        self.findings: list[Finding] = []
        self._ends_s = 0.0
        self._is_abandoned = False
        self._kinds: Counter[str] = Counter()

    def run(self) -> list[Finding]:
        """Each kind of finding once."""
        prepare(self.target, self.pools)
        # The schemas take seconds of a core to load, which are not part of the attack.
        all_apis()
        with self.watchdog:
            began_s = time.monotonic()
            self._ends_s = began_s + self.seconds
            asyncio.run(self._attack())
        self._take()
        took_s, done = time.monotonic() - began_s, self.ledger.done
        self.say(f"seed {self.seed}: {done} frames in {took_s:.0f} s ({done / took_s:.0f} a second)")
        self.say(f"outcomes: {self._outcomes()}")
        self.say(self.watchdog.report())
        for kind, count in self._kinds.most_common():
            self.say(f"{count} times: {kind}")
        return self.findings

    def _is_over(self) -> bool:
        return self._is_abandoned or time.monotonic() > self._ends_s

    def _outcomes(self) -> str:
        total: Counter[str] = Counter()
        for (_, outcome), count in self.ledger.outcomes.items():
            total[outcome] += count
        return ", ".join(f"{name} {count}" for name, count in sorted(total.items()))

    async def _attack(self) -> None:
        maker = FrameMaker(self.seed, self.pools)
        # Who reaches a controllers' listener counts as a node (decision 10). With a broker's own epoch it is that broker:
        # it may have itself fenced and removed, and the real one then ends as it should.
        as_stranger = FrameMaker(self.seed, replace(self.pools, broker_epochs=()))
        size = self.size
        listeners = [(listener, size.connections, maker) for listener in self.target.brokers]
        listeners += [
            (listener, size.controller_connections, as_stranger) for listener in self.target.controllers
        ]
        attackers = [
            Attacker(its_maker, self.ledger, listener, 1000 * place + number)
            for place, (listener, count, its_maker) in enumerate(listeners)
            for number in range(count)
        ]
        talks = [
            asyncio.create_task(converse(listener, self.ledger, self.pools, 100 * place + number))
            for place, listener in enumerate(self.target.brokers)
            for number in range(size.conversations)
        ]
        attacks = [asyncio.create_task(attacker.run()) for attacker in attackers]
        watch = asyncio.create_task(self._watch())
        await asyncio.gather(*attacks)
        for talk in talks:
            talk.cancel()
        watch.cancel()
        ended = await asyncio.gather(*talks, watch, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each

    async def _watch(self) -> None:
        said_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.watchdog.look()
            self._take()
            if all(process.exit_code() is not None for process in self.target.processes):
                self._is_abandoned = True
            if time.monotonic() - said_s > _SAY_EVERY_S:
                said_s = time.monotonic()
                self.say(f"{self.ledger.done} frames: {self._outcomes()}")

    def _take(self) -> None:
        """Collect what the watchdog and the attackers found; the log's entries with the frames of their connection."""
        found, self.watchdog.findings = self.watchdog.findings, []
        found += self.ledger.findings
        self.ledger.findings = []
        for finding in found:
            kind = _kind(finding)
            self._kinds[kind] += 1
            if self._kinds[kind] > 1:
                continue
            finding.detail += self._suspects(finding.detail)
            self.findings.append(finding)
            self.say(f"FINDING {finding}")

    def _suspects(self, entry: str) -> str:
        lines = []
        for port in _PEER.findall(entry):
            frames = list(self.ledger.recent.get(int(port), ()))[-_SUSPECTS_SHOWN:]
            lines += [f"sent on that connection: {self.ledger.describe(frame)}" for frame in frames]
        return "".join(f"\n{line[:4000]}" for line in lines)


def _kind(finding: Finding) -> str:
    """The same for findings of one cause: numbers, bytes and addresses do not count."""
    lines = [line for line in finding.detail.splitlines() if line.strip()]
    last = lines[-1] if lines and "Traceback" in finding.detail else (lines[0] if lines else "")
    places = [line.strip() for line in lines if line.strip().startswith("File ")][-1:]
    what = re.sub(r"seed .*", "", finding.what)
    return re.sub(r"\d+", "#", " ".join([what, *places, last]))[:300]
