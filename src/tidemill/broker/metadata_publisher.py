"""Publishes each committed metadata image to the partitions and coordinators of this broker.

Changes are applied in the order of the log. A small one is applied before `publish` returns. One that opens hundreds of
logs is cut into slices, and between these the loop serves heartbeats, votes and clients. Otherwise a node that creates
many partitions would look dead to its peers. Later changes queue behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from tidemill.broker.coordinators.runtime import CoordinatorRuntime
from tidemill.broker.partitions.replicas import Replicas
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage

# A round trip through three brokers waits for several of them.
_SLICE_S = 0.005


class MetadataPublisher:
    def __init__(self, replicas: Replicas, coordinators: Sequence[CoordinatorRuntime[Any]]) -> None:
        self._replicas = replicas
        self._coordinators = coordinators
        self._loop = asyncio.get_running_loop()
        self._changes: deque[tuple[MetadataDelta, MetadataImage]] = deque()
        # The rest of the change at the front, while it is being applied.
        self._steps: Iterator[None] | None = None
        self._is_busy = False
        self._has_begun = False
        # Whether every partition of the first image was opened.
        self.is_loaded = False

    async def load(self, image: MetadataImage) -> None:
        """Opens every partition of the image. Changes that arrive meanwhile are applied afterwards."""
        self._has_begun = True
        slice_end_s = self._loop.time() + _SLICE_S
        for _ in self._replicas.load_in_steps(image):
            if self._loop.time() >= slice_end_s:
                await asyncio.sleep(0)
                slice_end_s = self._loop.time() + _SLICE_S
        for coordinators in self._coordinators:
            coordinators.load(image)
        self.is_loaded = True
        self._go_on()

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes in a committed change. Before `load`, nothing needs it: `load` takes the whole image."""
        if self._has_begun:
            self._changes.append((delta, image))
            if self.is_loaded and not self._is_busy:
                self._go_on()

    def _go_on(self) -> None:
        self._is_busy = True
        slice_end_s = self._loop.time() + _SLICE_S
        while self._changes:
            delta, image = self._changes[0]
            if self._steps is None:
                self._steps = self._replicas.apply_in_steps(delta, image)
            for _ in self._steps:
                if self._loop.time() >= slice_end_s:
                    self._loop.call_soon(self._go_on)
                    return
            self._steps = None
            self._changes.popleft()
            for coordinators in self._coordinators:
                coordinators.apply(delta, image)
        self._is_busy = False

    def close(self) -> None:
        self._has_begun = False
        self._changes.clear()
        self._steps = None
