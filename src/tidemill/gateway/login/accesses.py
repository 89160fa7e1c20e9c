"""`Accesses`: the users that are connected to the cluster, each as itself.

An access is found by user and password together, never by the name alone. The first request of a user tries the password
at the cluster; the throttle makes guesses wait. After `verified_s` the password is tried again, while the access is in
use or when its next request comes. A password that the cluster no longer accepts ends the access, its sessions and its
event streams. ACLs need nothing of this: the cluster checks each request of the user.

Attempts run in a few threads of their own, so that guesses do not delay callers that are logged in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from tidemill.client.cluster import Cluster
from tidemill.client.connections.sasl import CredentialsRefused
from tidemill.errors import TidemillError
from tidemill.gateway.cluster.access import Access
from tidemill.gateway.cluster.backend import CLIENT_ID, Backend, credentials_refused
from tidemill.gateway.login.sessions import Session, Sessions
from tidemill.gateway.login.throttle import LoginThrottle
from tidemill.gateway.problems import Problem, problem_of
from tidemill.gateway.settings import Credentials, Settings
from tidemill.tls.refusals import RefusalLog

_TEND_S = 1.0
_ASK_AGAIN_S = 5.0
_NAME_CHARACTERS_MAX = 100

_log = logging.getLogger("tidemill.gateway.login")


class _Entry:
    """An access with what the pool has to know of it."""

    def __init__(self, access: Access, credentials: Credentials) -> None:
        self.access = access
        self.credentials = credentials
        self.requests = 0
        self.verified_s = self.used_s = time.monotonic()


class Accesses:
    def __init__(self, settings: Settings, sessions: Sessions) -> None:
        assert settings.login is not None
        self._settings = settings
        self._limits = settings.login
        self.sessions = sessions
        self._refusals = RefusalLog(_log)
        self.throttle = LoginThrottle(self._limits.wait_s_max)
        # The one that was unused longest is the first.
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._verifying: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(self._limits.attempts_max, "gateway-login")

    def all(self) -> list[Access]:
        return [entry.access for entry in self._entries.values()]

    @contextlib.asynccontextmanager
    async def using(self, credentials: Credentials, address: str) -> AsyncIterator[Access]:
        """The access of a user for the time of one request. `Problem` (401) when the cluster refuses the user."""
        owner = self.sessions.owner_of(credentials)
        entry = self._entries.get(owner)
        if entry is None or self._is_stale(entry):
            await self._verified(owner, credentials, address)
            entry = self._entries.get(owner)
            if entry is None:
                raise _too_many_users()
        self._entries.move_to_end(owner)
        entry.requests += 1
        try:
            yield entry.access
        finally:
            entry.requests -= 1
            entry.used_s = time.monotonic()

    async def tend(self) -> None:
        """Runs as long as the gateway: ends what is idle, and tries again what is in use for long."""
        while True:
            await asyncio.sleep(_TEND_S)
            now_s = time.monotonic()
            for session in self.sessions.expire(now_s):
                self.end_streams(session)
            for owner, entry in list(self._entries.items()):
                if entry.requests:
                    if self._is_stale(entry) and owner not in self._verifying:
                        self._verify_later(owner, entry.credentials, "")
                elif now_s - entry.used_s >= self._limits.access_idle_s:
                    self._end(owner)

    def end_streams(self, session: Session) -> None:
        entry = self._entries.get(session.owner)
        if entry is not None:
            entry.access.end_session(session.id)

    async def close(self) -> None:
        for owner in list(self._entries):
            self._end(owner)
        for task in self._verifying.values():
            task.cancel()
        await asyncio.gather(*self._closing, *self._verifying.values(), return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown)

    # --- passwords ---

    def _is_stale(self, entry: _Entry) -> bool:
        return time.monotonic() - entry.verified_s >= self._limits.verified_s

    async def _verified(self, owner: str, credentials: Credentials, address: str) -> None:
        """Requests with the same user and password wait for one attempt."""
        task = self._verifying.get(owner) or self._verify_later(owner, credentials, address)
        await asyncio.shield(task)

    def _verify_later(self, owner: str, credentials: Credentials, address: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._verify(owner, credentials, address), name="gateway-login")
        self._verifying[owner] = task
        task.add_done_callback(lambda done: self._settle(owner, done))
        return task

    def _settle(self, owner: str, task: asyncio.Task[None]) -> None:
        del self._verifying[owner]
        if not task.cancelled():
            # A caller that went away does not read it.
            task.exception()

    async def _verify(self, owner: str, credentials: Credentials, address: str) -> None:
        entry = self._entries.get(owner)
        if entry is not None:
            await self._verify_again(owner, entry)
            return
        attempt = self.throttle.begin(address, credentials.username, time.monotonic())
        if attempt is None:
            raise Problem(429, 429, "too many log-ins are being tried; try again later")
        is_success: bool | None = None
        try:
            await asyncio.sleep(attempt.wait_s)
            await self._try(credentials)
            is_success = True
        except CredentialsRefused:
            is_success = False
            line = f"log-in of user {shown(credentials.username)} from {shown(address)} is refused"
            self._refusals.tell(line, time.monotonic())
            raise credentials_refused() from None
        except TidemillError as error:
            raise problem_of(error) from None
        finally:
            self.throttle.end(attempt, time.monotonic(), is_success=is_success)
        await self._admit(owner, credentials)

    async def _verify_again(self, owner: str, entry: _Entry) -> None:
        try:
            await self._try(entry.credentials)
        except CredentialsRefused:
            self.revoke(owner)
            raise credentials_refused() from None
        except TidemillError:
            # The cluster cannot say now, and the caller's own request finds out. It is asked again soon.
            entry.verified_s = (
                time.monotonic() - self._limits.verified_s + min(_ASK_AGAIN_S, self._limits.verified_s)
            )
            return
        entry.verified_s = time.monotonic()

    async def _try(self, credentials: Credentials) -> None:
        settings = self._settings.as_user(credentials)
        await asyncio.get_running_loop().run_in_executor(self._threads, _connect, settings)

    # --- lives ---

    async def _admit(self, owner: str, credentials: Credentials) -> None:
        if len(self._entries) >= self._limits.accesses_max:
            idle = next((each for each, entry in self._entries.items() if not entry.requests), None)
            if idle is None:
                raise _too_many_users()
            self._end(idle)
        backend = Backend(self._settings.as_user(credentials), lambda: self.revoke(owner))
        await backend.open()
        self._entries[owner] = _Entry(Access(backend, owner), credentials)
        _log.info("user %s is connected", shown(credentials.username))

    def revoke(self, owner: str) -> None:
        """The password is no longer good."""
        self.sessions.revoke_all(owner)
        entry = self._entries.get(owner)
        if entry is not None:
            _log.warning(
                "user %s is no longer accepted by the cluster; its sessions end",
                shown(entry.credentials.username),
            )
            self._end(owner)

    def _end(self, owner: str) -> None:
        entry = self._entries.pop(owner)
        task = asyncio.create_task(entry.access.close(), name="gateway-access-end")
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a user's connections could not be closed", exc_info=task.exception())


def _connect(settings: Settings) -> None:
    with Cluster(
        settings.bootstrap, client_id=CLIENT_ID, timeout_s=settings.timeout_s, security=settings.security
    ) as cluster:
        cluster.load_metadata([])


def _too_many_users() -> Problem:
    return Problem(503, 50301, "too many users are connected; try again later")


def shown(name: str) -> str:
    """Formats a name that a caller sent for the log: in quotes, with escapes, and not too long."""
    return ascii(name[:_NAME_CHARACTERS_MAX])
