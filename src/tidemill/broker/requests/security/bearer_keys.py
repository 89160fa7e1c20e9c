"""The public keys that sign OAUTHBEARER tokens: read from a file or a URL, in a thread, again and again.

A file that cannot be read stops the start. A URL that does not answer does not: logins with tokens fail until it does. Keys
that were read stay in force while newer ones cannot be had.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import urllib.request
from pathlib import Path

from tidemill.broker.disk.syncer import RunBlocking
from tidemill.config import OAuthSettings
from tidemill.errors import ConfigError
from tidemill.security.conversations import SaslFailure
from tidemill.security.oauthbearer import BearerToken, TokenRules, TokenValidator

logger = logging.getLogger(__name__)

_DOCUMENT_BYTES_MAX = 1 << 20
_FETCH_S_MAX = 10.0
_RETRY_S = 10.0


class BearerKeys:
    def __init__(self, settings: OAuthSettings, run_blocking: RunBlocking) -> None:
        """Raises ConfigError when the keys are in a file that cannot be used."""
        self._settings = settings
        self._run_blocking = run_blocking
        self._rules = TokenRules(
            issuer=settings.issuer,
            audiences=settings.audiences,
            clock_skew_ms=settings.clock_skew_ms,
            subject_claim=settings.subject_claim,
            scope_claim=settings.scope_claim,
        )
        self._validator: TokenValidator | None = None
        self._refreshing: asyncio.Task[None] | None = None
        if settings.jwks_url.startswith("file:"):
            self._validator = self._read()

    def start(self) -> None:
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    def validate(self, token: str, wall_ms: int) -> BearerToken:
        if self._validator is None:
            raise SaslFailure("the keys of tokens could not be read yet", public="invalid_token")
        return self._validator(token, wall_ms)

    async def _refresh(self) -> None:
        if self._validator is not None:
            await asyncio.sleep(self._settings.refresh_ms / 1000)
        while True:
            pause_s = max(self._settings.refresh_ms / 1000, 1.0)
            try:
                self._validator = await self._run_blocking(self._read)
            except Exception as error:
                # Whatever an endpoint answers, the next answer may be a good one.
                pause_s = min(pause_s, _RETRY_S)
                logger.error(
                    "the keys of OAUTHBEARER cannot be read, trying again in %g s: %s",
                    pause_s,
                    str(error) or repr(error),
                )
            await asyncio.sleep(pause_s)

    def _read(self) -> TokenValidator:
        url = self._settings.jwks_url
        try:
            if url.startswith("file:"):
                text = Path(url.removeprefix("file://")).read_text(encoding="utf-8")
            else:
                with urllib.request.urlopen(url, timeout=_FETCH_S_MAX) as answer:
                    text = answer.read(_DOCUMENT_BYTES_MAX).decode()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url={url} cannot be read: {error}") from None
        return TokenValidator(text, self._rules)
