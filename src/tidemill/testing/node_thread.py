"""One node in this process: a thread with its own event loop, which runs the production `Node`.

The platform of the node is the real one, except for three parts: the test's clock, files without syncs, and a network
with faults. Everything that touches the node runs on its loop; a call from another thread waits.

A crash equals `kill -9` as far as a thread can. Connections end in the middle, timers and tasks of the node never run
again, nothing more is written, and the directory has no clean-shutdown file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tidemill.broker.clock import Clock
from tidemill.broker.net.sockets import SocketNetwork
from tidemill.broker.node import Node
from tidemill.broker.platform import Platform, boot_id
from tidemill.config import BrokerConfig
from tidemill.errors import TidemillError
from tidemill.testing.clock import TravelClock, TravelLoop
from tidemill.testing.faults import Faults
from tidemill.testing.files import ScratchFiles
from tidemill.testing.network import FaultyNetwork

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_S_MAX = 60.0
STOP_S_MAX = 60.0
_BLOCKING_THREADS = 4


class BrokerFailed(TidemillError):
    """A test broker did not start or stop."""


class NodeThread:
    """The thread of one node."""

    def __init__(self, config: BrokerConfig, clock: TravelClock, faults: Faults) -> None:
        self._config = config
        self._clock = clock
        self._faults = faults
        self._files = ScratchFiles()
        self._files.on_refused = faults.disk_refused
        self._started: Future[None] = Future()
        self._is_killed = False
        self._detach: list[Callable[[], None]] = []
        self._thread = threading.Thread(
            target=self._run, name=f"tidemill-broker-{config.node_id}", daemon=True
        )
        self._loop: TravelLoop
        self._network: FaultyNetwork
        # None before the start and after the end.
        self.node: Node | None = None

    # -- from the test's thread ------------------------------------------------------------------------------

    def begin(self) -> None:
        self._thread.start()

    def await_started(self) -> None:
        """Return when the node serves clients. Raises the error that prevented it."""
        try:
            self._started.result(START_S_MAX)
        except TimeoutError:
            self.crash()
            raise BrokerFailed(f"broker {self._config.node_id} did not start in {START_S_MAX:g} s") from None
        except BaseException:
            self._thread.join(STOP_S_MAX)
            raise
        self._detach = [self._clock.follow(self), self._faults.attach(self)]

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop as on SIGTERM: hand over leaderships, answer requests in flight, write the clean-shutdown file."""
        self._end(lambda node: node.request_stop())

    def crash(self) -> None:
        """Stop as on SIGKILL."""
        self._end(self._kill)

    def _end(self, how: Callable[[Node], None]) -> None:
        detach, self._detach = self._detach, []
        for each in detach:
            each()
        node = self.node
        if node is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(how, node)
        self._thread.join(STOP_S_MAX)
        if self._thread.is_alive():
            raise BrokerFailed(f"broker {self._config.node_id} did not stop in {STOP_S_MAX:g} s")

    def call(self, function: Callable[[Node], T]) -> T:
        """Run a function on the node's loop."""

        async def run() -> T:
            assert self.node is not None
            return function(self.node)

        return self._submit(run()).result(STOP_S_MAX)

    def run(self, function: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the node's loop and wait for its end."""

        async def run() -> T:
            assert self.node is not None
            return await function(self.node)

        return self._submit(run()).result(STOP_S_MAX)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._thread.is_alive():
            work.close()
            raise BrokerFailed(f"broker {self._config.node_id} does not run")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # -- what the clock and the faults ask -------------------------------------------------------------------

    def settle(self, *, is_alone: bool, limit_s: float) -> Future[None]:
        if self._thread.is_alive():
            return asyncio.run_coroutine_threadsafe(
                self._loop.settle(is_alone=is_alone, limit_s=limit_s), self._loop
            )
        gone: Future[None] = Future()
        gone.set_result(None)
        return gone

    def arrive(self) -> None:
        if self._thread.is_alive():
            self.run_retention()

    def run_retention(self) -> None:
        # Otherwise retention runs every log.retention.check.interval.ms.
        self.call(lambda node: node._replicas._log_manager.apply_retention())

    def disconnect_all(self) -> int:
        return self.call(lambda _: self._network.disconnect_all())

    def set_disk_full(self, is_full: bool) -> None:
        self._files.is_full = is_full

    # -- on the node's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: TravelLoop(self._clock)) as runner:
                runner.run(self._live())
        except Exception as error:
            if self._started.done():
                logger.exception("broker %d failed", self._config.node_id)
            else:
                self._started.set_exception(error)
        finally:
            self.node = None
            self._files.close()

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TravelLoop)
        self._loop = loop
        platform = self._platform(loop)
        node = self.node = Node(self._config, platform)
        try:
            await node.start()
        except BaseException:
            self._kill(node)
            platform.close()
            raise
        if not node.is_stopping:
            self._started.set_result(None)
            await node.wait_until_stopped()
        if self._is_killed:
            platform.close()
        else:
            await node.stop()
        if not self._started.done():
            raise BrokerFailed(node.failure or "it was stopped before it served")

    def _kill(self, node: Node) -> None:
        self._is_killed = True
        self._files.is_dead = True
        self._loop.set_exception_handler(lambda *_: None)
        # A node has no method for this, since the kernel does it. A failed start has created only some of the parts.
        for part, close in (
            ("_listening", "close"),
            ("_channels", "close"),
            ("_controller_channels", "close"),
            ("_data_dir", "unlock"),
        ):
            if hasattr(node, part):
                getattr(getattr(node, part), close)()
        self._loop.forget_timers()
        node.request_stop()

    def _platform(self, loop: TravelLoop) -> Platform:
        pool = ThreadPoolExecutor(
            _BLOCKING_THREADS, thread_name_prefix=f"tidemill-disk-{self._config.node_id}"
        )
        self._network = FaultyNetwork(
            SocketNetwork(loop), self._faults, self._topic_name, self._session_topics
        )

        def run_blocking(function: Callable[[], T], /) -> asyncio.Future[T]:
            loop.blocking_count += 1
            future = loop.run_in_executor(pool, function)
            future.add_done_callback(came_back)
            return future

        def came_back(_: asyncio.Future[Any]) -> None:
            loop.blocking_count -= 1

        return Platform(
            files=self._files,
            clock=Clock(self._clock, loop.time),
            network=self._network,
            rng=random.SystemRandom(),
            run_blocking=run_blocking,
            pid=os.getpid(),
            host_name=socket.gethostname(),
            boot_id=boot_id(),
            close=pool.shutdown,
        )

    def _topic_name(self, topic_id: bytes) -> str | None:
        node = self.node
        topic = node.broker.controller.image.topics_by_id.get(topic_id) if node is not None else None  # type: ignore[call-overload]
        return topic.name if topic is not None else None

    def _session_topics(self, session_id: int) -> set[str]:
        node = self.node
        session = node.broker.fetch_sessions._sessions.get(session_id) if node is not None else None
        if session is None:
            return set()
        keys = [key if isinstance(key, str) else self._topic_name(key) for key, _ in session.partitions]
        return {name for name in keys if name is not None}
