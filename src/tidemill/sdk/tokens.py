"""Bearer tokens for the SDK (SASL OAUTHBEARER): a function that returns one, or a file that has it.

librdkafka asks for a token when it connects and before the last one expires, and logs in again with it (KIP-368). The
function is called in a thread of librdkafka's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidemill.client.connections.security import PREFIXES, SecurityOptions
from tidemill.client.connections.tokens import Token, TokenSource, expiry_of
from tidemill.errors import ConfigError
from tidemill.sdk.errors import InvalidSetting

# A JWT, or any token with the time of its end in seconds since 1970.
GetToken = Callable[[], str | tuple[str, float]]


def with_token(
    config: Mapping[str, Any], token: GetToken | str | os.PathLike[str] | None
) -> Mapping[str, Any]:
    """The configuration of a client that logs in with such tokens."""
    if token is None:
        return config
    if config.get("sasl_mechanism", config.get("sasl_mechanisms", "OAUTHBEARER")) != "OAUTHBEARER":
        raise InvalidSetting("token is for sasl_mechanism='OAUTHBEARER'; leave out the other")
    defaults = {"security_protocol": "SASL_SSL", "sasl_mechanisms": "OAUTHBEARER"}
    if "sasl_mechanism" in config:
        del defaults["sasl_mechanisms"]
    return {**defaults, **config, "oauth_cb": _callback(token)}


@dataclass(frozen=True)
class FunctionTokens(TokenSource):
    """Tokens of librdkafka's callback, for connections of our own."""

    callback: Callable[[str], tuple[str, float]] = field(default=lambda _: ("", 0.0), repr=False)

    def token(self) -> Token:
        return Token(*self.callback(""))


def security_of(given: Mapping[str, Any]) -> SecurityOptions:
    """Returns the security of connections of our own, from librdkafka's properties."""
    options = {name: str(value) for name, value in given.items() if name.startswith(PREFIXES)}
    callback = given.get("oauth_cb")
    try:
        security = SecurityOptions.parse(options, needs_login=callback is None)
    except ConfigError as error:
        raise InvalidSetting(str(error)) from None
    if callback is None:
        return security
    return replace(security, token_source=FunctionTokens("file://", callback=callback))


def _callback(token: GetToken | str | os.PathLike[str]) -> Callable[[str], tuple[str, float]]:
    if isinstance(token, str | os.PathLike):
        return TokenSource(Path(token).absolute().as_uri()).for_librdkafka

    def call(_config: str) -> tuple[str, float]:
        found = token()
        return (found, expiry_of(found)) if isinstance(found, str) else found

    return call
