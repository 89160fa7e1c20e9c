"""Sends frames over many connections and accounts for each of them: answered, closed, or silent where silence is right.

A connection sends a handful of frames at once, and behind them one that every broker answers (the fence). When the fence's
answer is there, each frame before it has been answered; a produce may have wanted no answer. When the broker closes, the
first frame without an answer is to blame, and those behind it are sent again on a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kio.serial.errors import OutOfBoundValue

from tests.brokers import RunningBroker
from tests.wire import messages
from tests.wire.fuzz.frames import Frame, FrameMaker
from tests.wire.fuzz.watchdog import Finding

HANG_LIMIT_S = 120.0
# Of frames whose bytes may ask for a long wait.
_WAIT_LIMIT_S = 3.0
_DEPTH_MAX = 12
_DECODED_EVERY = 8
_RESPONSE_BYTES_MAX = 1 << 28
_FENCE_ID = 0x7FFFFFFF
_FENCE = messages.request("api_versions", 0, _FENCE_ID)
_RECENT_FRAMES = 48
_RECENT_PORTS = 4_000


@dataclass
class Ledger:
    """What was sent, what became of it, and what is wrong."""

    seed: int
    frames_max: int
    is_over: Callable[[], bool]
    first: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    done: int = 0
    findings: list[Finding] = field(default_factory=list)
    # By the local port of a connection: what it sent last.
    recent: dict[int, deque[Frame]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next = self.first

    def next_number(self) -> int | None:
        if self.is_over() or self._next - self.first >= self.frames_max:
            return None
        self._next += 1
        return self._next - 1

    def count(self, frame: Frame, outcome: str) -> None:
        self.done += 1
        self.outcomes[frame.api, outcome] += 1

    def find(self, what: str, frame: Frame, detail: str = "") -> None:
        self.findings.append(Finding(f"{what}: {self.describe(frame)}", detail))

    def describe(self, frame: Frame) -> str:
        shown = frame.wire.hex()
        return f"seed {self.seed} frame {frame.number} ({frame.api} v{frame.version}, {frame.kind}) FRAME={shown}"

    def note_sent(self, port: int, frames: list[Frame]) -> None:
        if port not in self.recent:
            if len(self.recent) >= _RECENT_PORTS:
                del self.recent[next(iter(self.recent))]
            self.recent[port] = deque(maxlen=_RECENT_FRAMES)
        self.recent[port].extend(frames)


class Attacker:
    """One connection after the other to one listener."""

    def __init__(self, maker: FrameMaker, ledger: Ledger, listener: RunningBroker, number: int) -> None:
        self._maker = maker
        self._ledger = ledger
        self._listener = listener
        self._random = random.Random(f"{ledger.seed} {number}")
        self._pending: list[Frame] = []

    async def run(self) -> None:
        while self._fill():
            try:
                reader, writer = await asyncio.open_connection(
                    self._listener.host, self._listener.port, limit=1 << 20
                )
            except OSError:
                # The watchdog finds out whether it ended.
                await asyncio.sleep(0.2)
                continue
            try:
                await self._use(reader, writer)
            finally:
                writer.transport.abort()

    def _fill(self) -> bool:
        depth = self._random.randrange(1, _DEPTH_MAX + 1)
        while len(self._pending) < depth and (number := self._ledger.next_number()) is not None:
            self._pending.append(self._maker.frame(number))
        return bool(self._pending)

    async def _use(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        while self._fill():
            frames = self._pending
            self._ledger.note_sent(port, frames)
            writer.write(b"".join([frame.wire for frame in frames]) + _FENCE)
            waiting = deque(frames)
            is_open = False
            may_wait = any(frame.may_wait for frame in frames)
            try:
                async with asyncio.timeout(_WAIT_LIMIT_S if may_wait else HANG_LIMIT_S):
                    is_open = await self._collect(reader, waiting)
            except TimeoutError:
                self._timed_out(waiting, may_wait)
            except (asyncio.IncompleteReadError, ConnectionError):
                if waiting:
                    self._ledger.count(waiting.popleft(), "closed")
            self._pending = list(waiting)
            if not is_open:
                return

    async def _collect(self, reader: asyncio.StreamReader, waiting: deque[Frame]) -> bool:
        """Until the fence is answered."""
        ledger = self._ledger
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            if not 4 <= size <= _RESPONSE_BYTES_MAX:
                ledger.find(f"a response of {size} bytes", waiting[0])
                return False
            payload = await reader.readexactly(size)
            (answered,) = struct.unpack_from(">i", payload)
            while waiting and not (answered == waiting[0].correlation_id and answered != _FENCE_ID):
                skipped = waiting.popleft()
                if not skipped.may_be_silent:
                    ledger.find("no answer, although a later request has one", skipped)
                ledger.count(skipped, "silent")
            if not waiting:
                if answered == _FENCE_ID:
                    return True
                ledger.findings.append(Finding(f"an answer to nothing: {answered}", payload[:200].hex()))
                return False
            frame = waiting.popleft()
            ledger.count(frame, "answered")
            if frame.number % _DECODED_EVERY == 0 and frame.kind in ("valid", "extreme"):
                self._decode(frame, payload)

    def _decode(self, frame: Frame, payload: bytes) -> None:
        try:
            messages.read_response(frame.api, frame.version, payload)
        except (OverflowError, OutOfBoundValue):
            # An instant or a duration that Python's types cannot hold: -1 for none.
            pass
        except Exception as error:
            self._ledger.find(f"an unreadable answer ({error!r})", frame, payload[:2000].hex())

    def _timed_out(self, waiting: deque[Frame], may_wait: bool) -> None:
        if not waiting:
            return
        frame = waiting.popleft()
        if may_wait:
            self._ledger.count(frame, "waits")
        else:
            self._ledger.find(f"neither answered nor closed within {HANG_LIMIT_S:g} s", frame)


async def attack(attackers: list[Attacker]) -> None:
    async with asyncio.TaskGroup() as group:
        for attacker in attackers:
            group.create_task(attacker.run())


async def send_one(listener: RunningBroker, wire: bytes, limit_s: float) -> str:
    """What becomes of a single frame, in a sentence."""
    reader, writer = await asyncio.open_connection(listener.host, listener.port)
    try:
        writer.write(wire)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(limit_s):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                payload = await reader.readexactly(size)
                return f"answered with {size} bytes: {payload[:400].hex()}"
    except TimeoutError:
        return f"neither answered nor closed within {limit_s:g} s"
    except asyncio.IncompleteReadError:
        pass
    finally:
        writer.transport.abort()
    return "closed"
