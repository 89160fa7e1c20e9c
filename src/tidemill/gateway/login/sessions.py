"""Sessions of callers that have logged in, for cookies and for bearer tokens. No I/O; the clock is passed in.

A session's id is random. What a caller holds is the id with a signature by a secret that is made when the gateway starts,
so a restart ends all sessions. User and password stay in the gateway's memory and are in neither.

A session ends when it was not used for a while, after a fixed time in any case, and when it is revoked. When there is
no more room, the one that was unused longest ends, of the same user if that user has too many.

A cookie is sent by the browser whatever page asks, so a change by cookie needs `csrf_token` as well, which only the
gateway's own pages can read. A cookie is no bearer token and the reverse.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tidemill.gateway.settings import Credentials, LoginLimits

_ID_BYTES = 32
_SEPARATOR = "."
_EXPIRED_AT_ONCE = 100


class Kind(StrEnum):
    COOKIE = "cookie"
    BEARER = "bearer"


@dataclass
class Session:
    id: str
    kind: Kind
    credentials: Credentials
    owner: str
    opened_s: float
    used_s: float
    # What the caller holds.
    text: str = field(repr=False)
    csrf_token: str = field(repr=False)


class Sessions:
    def __init__(self, limits: LoginLimits, random_bytes: Callable[[int], bytes]) -> None:
        self._limits = limits
        self._random_bytes = random_bytes
        self._secret = random_bytes(32)
        # The one that was unused longest is the first.
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        # In the order of their opening.
        self._opened: dict[str, Session] = {}
        self._by_owner: dict[str, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def owner_of(self, credentials: Credentials) -> str:
        """Returns a digest of user and password: equal for equal ones, and not reversible."""
        name = credentials.username.encode("utf-8", "surrogatepass")
        password = credentials.password.encode("utf-8", "surrogatepass")
        return self._sign("owner", b"%d:%s%s" % (len(name), name, password))

    def open(self, credentials: Credentials, kind: Kind, now_s: float) -> Session:
        owner = self.owner_of(credentials)
        own = self._by_owner.setdefault(owner, OrderedDict())
        if len(own) >= self._limits.user_sessions_max:
            self.revoke(next(iter(own)))
        if len(self._sessions) >= self._limits.sessions_max:
            self.revoke(next(iter(self._sessions)))
        session_id = self._random_bytes(_ID_BYTES).hex()
        session = Session(
            session_id,
            kind,
            credentials,
            owner,
            now_s,
            now_s,
            session_id + _SEPARATOR + self._sign(kind, session_id.encode()),
            self._sign("csrf", session_id.encode()),
        )
        self._sessions[session_id] = self._opened[session_id] = session
        self._by_owner.setdefault(owner, own)[session_id] = None
        return session

    def find(self, text: str, kind: Kind, now_s: float) -> Session | None:
        """The session of what a caller sent, used now; None when it is forged, over, or of the other kind."""
        session_id, _, signature = text.partition(_SEPARATOR)
        expected = self._sign(kind, session_id.encode("utf-8", "replace"))
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()):
            return None
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if self._is_idle(session, now_s) or self._is_old(session, now_s):
            self.revoke(session_id)
            return None
        session.used_s = now_s
        self._sessions.move_to_end(session_id)
        self._by_owner[session.owner].move_to_end(session_id)
        return session

    def revoke(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            del self._opened[session_id]
            own = self._by_owner[session.owner]
            del own[session_id]
            if not own:
                del self._by_owner[session.owner]

    def revoke_all(self, owner: str) -> None:
        """Ends the sessions of a user whose password is no longer good."""
        for session_id in list(self._by_owner.get(owner, ())):
            self.revoke(session_id)

    def expire(self, now_s: float) -> list[Session]:
        """Drops and returns the sessions that are over.

        Both tables have the first to go at the front, so few are looked at.
        """
        over: list[Session] = []
        for table, is_over in ((self._sessions, self._is_idle), (self._opened, self._is_old)):
            while table and len(over) < _EXPIRED_AT_ONCE:
                first = next(iter(table.values()))
                if not is_over(first, now_s):
                    break
                self.revoke(first.id)
                over.append(first)
        return over

    def is_csrf_token(self, session: Session, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), session.csrf_token.encode())

    def _is_idle(self, session: Session, now_s: float) -> bool:
        return now_s - session.used_s >= self._limits.session_idle_s

    def _is_old(self, session: Session, now_s: float) -> bool:
        return now_s - session.opened_s >= self._limits.session_s_max

    def _sign(self, purpose: str, data: bytes) -> str:
        return hmac.digest(self._secret, purpose.encode() + b":" + data, hashlib.sha256).hex()
