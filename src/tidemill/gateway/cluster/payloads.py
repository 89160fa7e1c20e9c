"""Large payloads: into an object store before their record is written, and back when it is read.

Calls to the store block, so `store` uses threads, a few at a time; `resolved` is called in threads that read records anyway.
A claim that cannot be resolved is refused with a `Problem` that names its record. It is never answered as an empty value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tidemill.claims.claim import CLAIM_HEADERS, CLAIM_VALUE, Place, Text, has_claim, parse_claim
from tidemill.claims.errors import ClaimCorrupt, ClaimError, ClaimStoreDown, ClaimTooLarge
from tidemill.claims.large_payloads import LargePayloads
from tidemill.gateway.problems import Problem

_THREADS = 4

Headers = Sequence[tuple[str, bytes | None]]


class Stored(NamedTuple):
    """The value and headers that are written in place of a large value."""

    value: bytes
    headers: Headers


class Payloads:
    def __init__(self, large_payloads: LargePayloads | None) -> None:
        self._large_payloads = large_payloads
        self._pool = ThreadPoolExecutor(_THREADS, "gateway-payloads")

    def close(self) -> None:
        self._pool.shutdown()

    def is_large(self, value: bytes | None) -> bool:
        return self._large_payloads is not None and self._large_payloads.is_large(value)

    async def store(self, topic: str, value: bytes, headers: Headers) -> Stored:
        """Returns when the payload is in the store."""
        large_payloads = self._large_payloads
        assert large_payloads is not None
        if any(name in CLAIM_HEADERS for name, _ in headers):
            raise Problem(400, 40002, "headers of claims are for records without a value")
        loop = asyncio.get_running_loop()
        try:
            claim = await loop.run_in_executor(self._pool, large_payloads.put, topic, value)
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
