"""The PLAIN users of a listener: those of its `sasl.jaas.config`, and those of a file that is read again when it changes.

The file has the syntax of `.properties`, a user and a password in each line. A file that cannot be used stops the start.
Later it leaves the users in force that were read before, and one log line says why. A user of `sasl.jaas.config` counts
before one of the same name in the file. No error shows a password.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from tidemill.broker.disk.syncer import RunBlocking
from tidemill.config import PLAIN_USERS_FILE, SaslSettings, parse_properties
from tidemill.errors import ConfigError
from tidemill.security.plain import PlainUsers
from tidemill.tls.stores import file_stamp

logger = logging.getLogger(__name__)

_RELOAD_S = 1.0


class KnownPlainUsers:
    def __init__(self, settings: SaslSettings, listener_name: str, run_blocking: RunBlocking) -> None:
        """Raises ConfigError when there is a file that cannot be used."""
        self._configured = {user: password.value for user, password in settings.plain_users.items()}
        self._file = settings.plain_users_file
        self._listener_name = listener_name
        self._run_blocking = run_blocking
        self._reloading: asyncio.Task[None] | None = None
        self._seen = file_stamp(self._file) if self._file else None
        self.users = self._load()

    def start(self) -> None:
        if self._file:
            self._reloading = asyncio.get_running_loop().create_task(self._reload())

    def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(_RELOAD_S)
            try:
                if await self._run_blocking(self._reload_if_changed):
                    logger.info("listener %s has new PLAIN users", self._listener_name)
            except ConfigError as error:
                logger.error("listener %s keeps its old PLAIN users: %s", self._listener_name, error)

    def _reload_if_changed(self) -> bool:
        assert self._file is not None
        # Before the file is read: a change meanwhile is seen the next time.
        stamp = file_stamp(self._file)
        if stamp == self._seen:
            return False
        self._seen = stamp
        self.users = self._load()
        return True

    def _load(self) -> PlainUsers:
        in_file = _read(self._file) if self._file else {}
        return PlainUsers({**in_file, **self._configured})


def _read(path: str) -> Mapping[str, str]:
    try:
        users = parse_properties(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(path, (error.strerror or "it cannot be read").lower()) from None
    except UnicodeDecodeError:
        raise _unusable(path, "it is not UTF-8") from None
    except ConfigError as error:
        raise _unusable(path, str(error)) from None
    if not users:
        # A file that is being written is empty for a moment.
        raise _unusable(path, "it has no user")
    for user, password in users.items():
        if not user or not password:
            raise _unusable(path, f"the user {user!r} has no password" if user else "a user has no name")
        if any("\ud800" <= char <= "\udfff" for char in user + password):
            raise _unusable(path, f"the name or password of the user {user!r} is no text")
    return users


def _unusable(path: str, reason: str) -> ConfigError:
    return ConfigError(f"{PLAIN_USERS_FILE}={path} cannot be used: {reason}")
