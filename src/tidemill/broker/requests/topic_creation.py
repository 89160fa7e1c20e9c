"""Creates the topics that Metadata requests ask for, behind their answers (Kafka: AutoTopicCreationManager).

A client gets UNKNOWN_TOPIC_OR_PARTITION at first and asks again; the controller creates the topic meanwhile. A topic whose
creation is under way is not asked for twice, however many clients retry. Internal topics are created as their coordinators
need them. A creation that fails leaves one line in the log: the clients ask again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tidemill.errors import ApiError
from tidemill.protocol.api.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidemill.protocol.schema import Request, Response

logger = logging.getLogger(__name__)

# So that one request with very many names does not fill the cluster. A client whose topic finds no room asks again.
_UNDER_WAY_MAX = 1_000

Ask = Callable[[Request], Awaitable[Response]]
EnsureInternal = Callable[[], Awaitable[None]]


class TopicCreation:
    def __init__(self, ask: Ask, internal: Mapping[str, EnsureInternal]) -> None:
        """`ask` reaches the controller; `internal` creates the internal topics by name."""
        self._ask = ask
        self._internal = internal
        self._under_way: set[str] = set()
        # The loop keeps weak references only.
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, names: Iterable[str]) -> None:
        """Returns at once; the topics appear in the metadata when they are created."""
        room = _UNDER_WAY_MAX - len(self._under_way)
        fresh = [name for name in dict.fromkeys(names) if name not in self._under_way][:room]
        for name in fresh:
            if name in self._internal:
                self._start([name], self._internal[name]())
        plain = [name for name in fresh if name not in self._internal]
        if plain:
            self._start(plain, self._create(plain))

    def _start(self, names: list[str], creation: Awaitable[None]) -> None:
        self._under_way.update(names)
        task = asyncio.get_running_loop().create_task(self._finish(names, creation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, names: list[str], creation: Awaitable[None]) -> None:
        try:
            await creation
        except ApiError as error:
            logger.warning("cannot create %s: %s", _shown(names), error.message)
        finally:
            self._under_way.difference_update(names)

    async def _create(self, names: list[str]) -> None:
        topics = [CreatableTopic(name=name, num_partitions=-1, replication_factor=-1) for name in names]
        response = await self._ask(CreateTopicsRequest(topics=topics))
        assert isinstance(response, CreateTopicsResponse)
        for topic in response.topics:
            if topic.error_code:
                logger.info("topic %s is not created: %s", topic.name, topic.error_message)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def _shown(names: list[str]) -> str:
    return f"topic {names[0]}" if len(names) == 1 else f"topic {names[0]} and {len(names) - 1} more"
