"""The errors of claims. Each message is one line: which record, what happened, and what to do.

ClientError
└── ClaimError
    ├── ClaimInvalid        its headers are incomplete, doubled or do not parse
    ├── ClaimForged         it points outside the store; nothing was fetched
    ├── ClaimMissing        its object is gone
    ├── ClaimCorrupt        its object has another size or hash
    ├── ClaimTooLarge       its payload is above the limit; nothing was fetched
    ├── ClaimUnresolved     the reader was not given a store
    ├── PayloadUnreadable   what is published cannot be read, or changes meanwhile; no record was sent
    └── ClaimStoreDown      the store gives no answer; the same call may be made again
"""

from __future__ import annotations

from tidemill.errors import ClientError


class ClaimError(ClientError):
    """A payload that is not in its record cannot be read or written."""


class ClaimInvalid(ClaimError):
    """The headers of the claim are incomplete, doubled or do not parse."""


class ClaimForged(ClaimError):
    """The claim points outside the store. Nothing was fetched."""


class ClaimMissing(ClaimError):
    """The object of the claim is gone."""


class ClaimCorrupt(ClaimError):
    """The object of the claim has another size or hash than the claim says."""


class ClaimTooLarge(ClaimError):
    """The payload is larger than the reader takes into memory. Nothing was fetched."""


class PayloadUnreadable(ClaimError):
    """The file or iterator that is published fails, or changes while it is read. No record was sent."""


class ClaimUnresolved(ClaimError):
    """The payload is in a store, and the reader was not given one."""


class ClaimStoreDown(ClaimError):
    """The store gives no answer, or does not let this client in."""

    def __init__(self, message: str) -> None:
        super().__init__(message, is_retriable=True)
