"""Bearer tokens for the SDK (SASL OAUTHBEARER): a function that returns one, or a file that has it.

librdkafka asks for a token when it connects and before the last one expires, and logs in again with it (KIP-368). The
function is called in a thread of librdkafka's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidemill.client.tokens import TokenSource, expiry_of
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


def _callback(token: GetToken | str | os.PathLike[str]) -> Callable[[str], tuple[str, float]]:
    if isinstance(token, str | os.PathLike):
        return TokenSource(Path(token).absolute().as_uri()).for_librdkafka

    def call(_config: str) -> tuple[str, float]:
        found = token()
        return (found, expiry_of(found)) if isinstance(found, str) else found

    return call
