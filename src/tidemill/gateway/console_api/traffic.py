"""Sums the bytes in and out over the `/metrics` of the status listeners in `Settings.status_urls`.

A listener with TLS is trusted as the brokers are, by the same options.

A sum covers the listeners that answered and is compared only with a sum over the same ones. A counter that restarted with
its broker, or a listener that did not answer, gives no rate for that interval.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from tidemill.errors import ConfigError
from tidemill.gateway.console_api.picture import Traffic
from tidemill.gateway.settings import Settings
from tidemill.tls.contexts import client_context

_TIMEOUT_S = 2.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_BYTES_IN = "kafka_server_brokertopicmetrics_bytesin_total"
_BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"


def _get(settings: Settings, url: str) -> bytes | None:
    """Returns the answer of a status listener; None when it does not answer in time, or refuses. Runs in a thread."""
    try:
        context = client_context(settings.security.tls_settings()) if url.startswith("https:") else None
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=context) as response:
            content: bytes = response.read(_ANSWER_BYTES_MAX)
            return content
    except (ConfigError, OSError, ValueError, urllib.error.URLError):
        return None


async def get_all(settings: Settings, path: str, urls: Sequence[str] | None = None) -> dict[str, bytes]:
    """The answers of the listeners that answered, of these or of all; the requests run at the same time."""
    asked = settings.status_urls if urls is None else urls
    answers = await asyncio.gather(
        *(asyncio.to_thread(_get, settings, url.rstrip("/") + path) for url in asked)
    )
    return {url: answer for url, answer in zip(asked, answers, strict=True) if answer is not None}


async def traffic(settings: Settings) -> dict[str, Traffic]:
    """By listener."""
    answers = await get_all(settings, "/metrics")
    return {url: _parse(content) for url, content in answers.items()}


def _parse(content: bytes) -> Traffic:
    sums = {_BYTES_IN: 0.0, _BYTES_OUT: 0.0}
    for line in content.decode("utf-8", "replace").splitlines():
        if not line.startswith("kafka_server_brokertopicmetrics_bytes"):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in sums:
            sums[name] += float(line.rsplit(" ", 1)[1])
    return Traffic(int(sums[_BYTES_IN]), int(sums[_BYTES_OUT]))


def moved(before: Mapping[str, Traffic], now: Mapping[str, Traffic]) -> Traffic | None:
    """Bytes between two answers; None where they are not of the same listeners, or one of them began anew."""
    if not before or set(before) != set(now):
        return None
    bytes_in = bytes_out = 0
    for url, each in now.items():
        first = before[url]
        if each.bytes_in < first.bytes_in or each.bytes_out < first.bytes_out:
            return None
        bytes_in += each.bytes_in - first.bytes_in
        bytes_out += each.bytes_out - first.bytes_out
    return Traffic(bytes_in, bytes_out)
