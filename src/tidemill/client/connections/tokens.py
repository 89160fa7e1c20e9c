"""Bearer tokens of a client, for the SASL mechanism OAUTHBEARER.

A token comes from a file that something else renews, or from an authorisation server by the client credentials grant, as
Kafka's clients do it (KIP-768). A file is read for each login. A token of a server is kept until 80 % of its life is over,
and shared by the connections of this process. No error holds a token or a secret.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tidemill.errors import ConfigError, TidemillError

_FILE = "file://"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LIMIT_S = 10.0
_ANSWER_BYTES_MAX = 1 << 20
_KEPT_SHARE = 0.8
_steady_s = time.monotonic
# How long a token is taken to live that does not tell.
_UNKNOWN_LIFE_S = 300.0


class TokenUnavailable(TidemillError):
    """The authorisation server gave no token. Another attempt may succeed."""


class Token(NamedTuple):
    value: str
    # In seconds since 1970.
    expires_s: float

    def __repr__(self) -> str:
        return f"Token([hidden], expires_s={self.expires_s:.0f})"


def expiry_of(token: str) -> float:
    """The claim `exp` of a token that is a JWT. Nothing is verified: that is the broker's part."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return time.time() + _UNKNOWN_LIFE_S


@dataclass(frozen=True)
class TokenSource:
    """The source of tokens. A plain value, so that it can be sent to another process."""

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""

    def __post_init__(self) -> None:
        if self.is_file:
            return
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            raise ConfigError(
                f"sasl.oauthbearer.token.endpoint.url={self.url} should be file:///PATH or https://…: what is sent there is "
                "a secret"
            )
        if not self.client_id or not self.client_secret:
            raise ConfigError(
                "sasl.oauthbearer.token.endpoint.url names a server, which needs "
                "sasl.oauthbearer.client.credentials.client.id and sasl.oauthbearer.client.credentials.client.secret"
            )

    @property
    def is_file(self) -> bool:
        return self.url.startswith(_FILE)

    def token(self) -> Token:
        if self.is_file:
            return self._read()
        with _lock:
            kept = _kept.get(self)
            if kept is None or _steady_s() >= kept[1]:
                found = self._request()
                life_s = max(found.expires_s - time.time(), 0.0)
                kept = _kept[self] = found, _steady_s() + _KEPT_SHARE * life_s
            return kept[0]

    def for_librdkafka(self, _config: str) -> tuple[str, float]:
        """`oauth_cb` of confluent-kafka."""
        found = self.token()
        return found.value, found.expires_s

    def _read(self) -> Token:
        path = self.url.removeprefix(_FILE)
        try:
            value = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"the token in {path} cannot be read") from None
        return Token(value, expiry_of(value))

    def _request(self) -> Token:
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        credentials = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        request = urllib.request.Request(
            self.url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": f"Basic {credentials}", "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_LIMIT_S) as response:
                answer = json.loads(response.read(_ANSWER_BYTES_MAX))
            return _token_of(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise TokenUnavailable(f"{self.url} gives no token: status {error.code}") from None
        except urllib.error.URLError as error:
            raise TokenUnavailable(f"{self.url} cannot be reached: {error.reason}") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise TokenUnavailable(f"{self.url} gives no token: its answer cannot be read") from None


def _token_of(answer: dict[str, Any]) -> Token:
    value = answer["access_token"]
    if not isinstance(value, str) or not value:
        raise ValueError
    life_s = answer.get("expires_in")
    return Token(value, expiry_of(value) if life_s is None else time.time() + float(life_s))


_lock = threading.Lock()
# What servers gave, with the steady time until which it is used.
_kept: dict[TokenSource, tuple[Token, float]] = {}
