"""`Access`: the cluster as one caller may use it, and what the parts of the gateway keep for that caller.

Without log-ins the gateway has one access, which all requests share. With them there is one for each user and password
(`login/accesses.py`), and the request's scope has it, so that every part sees what that user may see and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Scope

from tidemill.gateway.cluster.backend import Backend

T = TypeVar("T")


class Access:
    def __init__(self, backend: Backend, owner: str = "") -> None:
        self.backend = backend
        # Identifies the caller: what belongs to one owner is not there for another.
        self.owner = owner
        # Run when the access ends, and when one of its sessions does, with the id of that session.
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.session_enders: list[Callable[[str], None]] = []
        self._kept: dict[str, Any] = {}

    @property
    def username(self) -> str | None:
        user = self.backend.settings.user
        return None if user is None else user.username

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Returns the object that a part keeps for this caller, made when it is first needed."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: T = self._kept[name]
        return kept

    def kept(self, name: str) -> Any:
        return self._kept.get(name)

    def end_session(self, session_id: str) -> None:
        for end in self.session_enders:
            end(session_id)

    async def close(self) -> None:
        """Ends what the parts keep, the last first, and then the backend."""
        while self.closers:
            await self.closers.pop()()
        await self.backend.close()


def access_in(scope: Scope) -> Access:
    found: Access | None = scope.get("access")
    if found is None:
        found = scope["app"].state.access
        # Where callers log in there is no other access.
        assert found is not None
    return found


def access_of(request: Request) -> Access:
    return access_in(request.scope)


def backend_of(request: Request) -> Backend:
    return access_of(request).backend


def session_id_of(request: Request) -> str:
    """Empty for a caller without a session."""
    found: str = request.scope.get("session_id", "")
    return found
