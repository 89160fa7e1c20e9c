"""Sums the bytes in and out over the `/metrics` of the status listeners in `Settings.status_urls`.

A sum covers the listeners that answered and is compared only with a sum over the same ones. A counter that restarted with
its broker, or a listener that did not answer, gives no rate for that interval.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from tidemill.gateway.console_api.picture import Traffic

_TIMEOUT_S = 2.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_BYTES_IN = "kafka_server_brokertopicmetrics_bytesin_total"
_BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"


def get(url: str) -> bytes | None:
    """What a status listener says; None when it says nothing in time, or no. In a thread."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            content: bytes = response.read(_ANSWER_BYTES_MAX)
            return content
    except (OSError, ValueError, urllib.error.URLError):
        return None


async def get_all(urls: Sequence[str], path: str) -> dict[str, bytes]:
    """The answers of the listeners that answered; all requests run at the same time."""
    answers = await asyncio.gather(*(asyncio.to_thread(get, url.rstrip("/") + path) for url in urls))
    return {url: answer for url, answer in zip(urls, answers, strict=True) if answer is not None}


async def traffic(urls: Sequence[str]) -> dict[str, Traffic]:
    """By listener."""
    answers = await get_all(urls, "/metrics")
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
