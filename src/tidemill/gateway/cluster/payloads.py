"""Large payloads: into an object store before their record is written, and back when it is read.

Calls to the store block, so they use threads of their own, a few at a time. A store that gives no answer holds up what
needs it, and no other request. Consumer instances call `resolved` in their own threads.
A claim that cannot be resolved is refused with a `Problem` that names its record. It is never answered as an empty value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from tidemill.claims.claim import CLAIM_HEADERS, CLAIM_VALUE, Place, Text, has_claim, parse_claim
from tidemill.claims.errors import ClaimCorrupt, ClaimError, ClaimStoreDown, ClaimTooLarge
from tidemill.claims.large_payloads import LargePayloads
from tidemill.gateway.problems import Problem

_THREADS = 4
_WAITING_MAX = 256

T = TypeVar("T")

Headers = Sequence[tuple[str, bytes | None]]


class Stored(NamedTuple):
    """The value and headers that are written in place of a large value."""

    value: bytes
    headers: Headers


class Payloads:
    def __init__(self, large_payloads: LargePayloads | None) -> None:
        self._large_payloads = large_payloads
        self._pool = ThreadPoolExecutor(_THREADS, "gateway-payloads")
        self._running = 0

    def close(self) -> None:
        self._pool.shutdown()

    async def run(self, call: Callable[[], T]) -> T:
        """Returns the result of a call that may read many payloads, in a thread."""
        if self._running >= _THREADS + _WAITING_MAX:
            raise Problem(503, 50301, "too many requests wait for the object store; try again later")
        self._running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        finally:
            self._running -= 1

    def is_large(self, value: bytes | None) -> bool:
        return self._large_payloads is not None and self._large_payloads.is_large(value)

    async def store(self, topic: str, value: bytes, headers: Headers) -> Stored:
        """Returns when the payload is in the store."""
        large_payloads = self._large_payloads
        assert large_payloads is not None
        if any(name in CLAIM_HEADERS for name, _ in headers):
            raise Problem(400, 40002, "headers of claims are for records without a value")
        try:
            claim = await self.run(partial(large_payloads.put, topic, value))
        except ClaimCorrupt as error:
            raise Problem(409, 40908, str(error)) from None
        except ClaimError as error:
            raise _problem(error) from None
        return Stored(CLAIM_VALUE, [*headers, *claim.headers()])

    def resolved(
        self, place: Place, value: bytes | None, headers: Sequence[tuple[str, Text | None]]
    ) -> bytes | None:
        """The value, or the payload of its claim. Blocks as long as the store does."""
        if not has_claim(value, headers):
            return value
        try:
            claim = parse_claim(value, headers, place)
            assert claim is not None
            if self._large_payloads is None:
                raise Problem(
                    409,
                    40908,
                    f"{place}: the payload of {claim.size} bytes is in an object store; start the gateway with "
                    "--large-payloads, or read from the next offset",
                )
            return self._large_payloads.read(claim, place)
        except ClaimError as error:
            raise _problem(error) from None


def _problem(error: ClaimError) -> Problem:
    match error:
        case ClaimStoreDown():
            return Problem(503, 50301, str(error))
        case ClaimTooLarge():
            return Problem(413, 413, str(error))
    return Problem(409, 40908, f"{error}. The next offset can be read")
