"""Large payloads of `tidemill produce` and `tidemill consume`: into an object store and back.

Without a store, `consume` prints where the payload is instead of an empty value, and says once on standard error how to
get at it. The JSON of a record is lossless: there a claim stays as it is.
"""

from __future__ import annotations

import argparse
import sys

from tidemill.claims.claim import CLAIM_HEADERS, CLAIM_VALUE, Place, has_claim, parse_claim, shown_claim
from tidemill.claims.large_payloads import THRESHOLD_BYTES, LargePayloads
from tidemill.cli.options import natural
from tidemill.cli.records.record_format import BadRecord, NewRecord, Writer
from tidemill.client.consumer import Consumed
from tidemill.protocol.records import Header


def add_store(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--large-payloads", metavar="STORE", help=f"a folder, or a URL such as s3://bucket/prefix: {what}"
    )


def add_threshold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threshold",
        metavar="BYTES",
        type=natural,
        default=THRESHOLD_BYTES,
        help=f"values of more bytes go to the --large-payloads (default {THRESHOLD_BYTES})",
    )


def large_payloads_of(arguments: argparse.Namespace) -> LargePayloads | None:
    if arguments.large_payloads is None:
        return None
    return LargePayloads(
        arguments.large_payloads,
        threshold_bytes=getattr(arguments, "threshold", THRESHOLD_BYTES),
        aliases=getattr(arguments, "store_alias", ()),
    )


def stored(large_payloads: LargePayloads | None, topic: str, record: NewRecord) -> NewRecord:
    """The record itself, or its claim when its value is now in the store."""
    if large_payloads is None or record.value is None or not large_payloads.is_large(record.value):
        return record
    if any(header.key in CLAIM_HEADERS for header in record.headers):
        raise BadRecord("headers of claims are for records without a value")
    claim = large_payloads.put(topic, record.value)
    headers = [*record.headers, *(Header(name, content) for name, content in claim.headers())]
    return record._replace(value=CLAIM_VALUE, headers=headers)


def resolving(write: Writer, large_payloads: LargePayloads | None, *, is_lossless: bool) -> Writer:
    """Writes records with their payloads. A lossless format shows a claim by its headers."""
    is_told = False

    def write_resolved(consumed: Consumed) -> bytes:
        nonlocal is_told
        partition, record = consumed
        if not has_claim(record.value, record.headers):
            return write(consumed)
        place = Place(partition.topic, partition.partition, record.offset)
        if large_payloads is None:
            if not is_told:
                is_told = True
                print(
                    "payloads of this topic are in an object store; --large-payloads STORE prints them",
                    file=sys.stderr,
                )
            if is_lossless:
                return write(consumed)
            instead = shown_claim(record.value, record.headers, place) or ""
            return write(Consumed(partition, record._replace(value=instead.encode())))
        claim = parse_claim(record.value, record.headers, place)
        assert claim is not None
        headers = [header for header in record.headers if header.key not in CLAIM_HEADERS]
        return write(
            Consumed(partition, record._replace(value=large_payloads.read(claim, place), headers=headers))
        )

    return write_resolved
