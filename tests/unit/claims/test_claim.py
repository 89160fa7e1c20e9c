"""The format of claims, and which URIs a store may resolve."""

from __future__ import annotations

import pytest

from tidemill.claims.claim import (
    SHA256_HEADER,
    SIZE_HEADER,
    URI_HEADER,
    Claim,
    Place,
    key_for,
    parse_claim,
    parse_key,
    resolve,
)
from tidemill.claims.errors import ClaimForged, ClaimInvalid

SHA = "ab" * 32
PLACE = Place("orders", 3, 17)
STORE = "s3://bucket/claims"
KEY = f"orders/2026-11-17/{SHA}"
GOOD = Claim(f"{STORE}/{KEY}", 5, SHA)

Headers = list[tuple[str, bytes | None]]


def test_claim_headers_parse_back_to_the_claim_beside_other_headers() -> None:
    headers: Headers = [("trace", None), *GOOD.headers(), ("trace", b"2")]
    assert parse_claim(b"", headers, PLACE) == GOOD


def test_record_without_claim_headers_is_no_claim() -> None:
    assert parse_claim(b"", [("trace", b"1")], PLACE) is None
    assert parse_claim(b"", [], PLACE) is None


def test_tombstone_with_claim_headers_stays_a_tombstone() -> None:
    assert parse_claim(None, GOOD.headers(), PLACE) is None


def test_value_with_content_counts_although_claim_headers_were_copied() -> None:
    assert parse_claim(b"a new value", GOOD.headers(), PLACE) is None


@pytest.mark.parametrize("name", [URI_HEADER, SIZE_HEADER, SHA256_HEADER])
def test_doubled_missing_or_unparsable_header_is_invalid_and_names_the_record(name: str) -> None:
    headers: Headers = list(GOOD.headers())
    content = dict(headers)[name]
    others = [each for each in headers if each[0] != name]
    for bad in ([*headers, (name, content)], others, [*others, (name, None)], [*others, (name, b"\xff\x00")]):
        with pytest.raises(ClaimInvalid, match=f"orders-3 at offset 17: .*{name}"):
            parse_claim(b"", bad, PLACE)


@pytest.mark.parametrize("size", ["-1", "1e9", "0x10", "007", "", " 5", "9" * 20, "٣"])
def test_size_that_is_no_plain_decimal_number_is_invalid(size: str) -> None:
    headers: Headers = [
        (URI_HEADER, GOOD.uri.encode()),
        (SIZE_HEADER, size.encode()),
        (SHA256_HEADER, SHA.encode()),
    ]
    with pytest.raises(ClaimInvalid, match=SIZE_HEADER):
        parse_claim(b"", headers, PLACE)


@pytest.mark.parametrize("sha256", [SHA.upper(), SHA[:-1], SHA + "0", "g" * 64])
def test_hash_that_is_no_lower_case_sha256_is_invalid(sha256: str) -> None:
    headers: Headers = [
        (URI_HEADER, GOOD.uri.encode()),
        (SIZE_HEADER, b"5"),
        (SHA256_HEADER, sha256.encode()),
    ]
    with pytest.raises(ClaimInvalid, match=SHA256_HEADER):
        parse_claim(b"", headers, PLACE)


def test_uri_of_the_store_resolves_to_the_key() -> None:
    assert str(resolve(GOOD, [STORE], PLACE)) == KEY


def test_uri_of_an_alias_of_the_store_resolves_to_the_key() -> None:
    assert str(resolve(GOOD, ["s3://new-name", STORE], PLACE)) == KEY


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://other-bucket/claims/{KEY}",
        f"s3://bucket/claims-of-others/{KEY}",
        f"s3://bucket/{KEY}",
        f"S3://bucket/claims/{KEY}",
        f"https://evil.example/{KEY}",
        f"http://169.254.169.254/latest/{KEY}",
        f"file:///etc/passwd/{KEY}",
        f"/etc/{KEY}",
        KEY,
        f"{STORE}//etc/{KEY}",
        f"{STORE}/../claims/{KEY}",
        f"{STORE}/../../{KEY}",
        f"{STORE}/../2026-11-17/{SHA}",
        f"{STORE}/./2026-11-17/{SHA}",
        f"{STORE}/orders/../{SHA}",
        f"{STORE}/%2e%2e/2026-11-17/{SHA}",
        f"{STORE}/orders/2026-11-17/{SHA}?versionId=1",
        f"{STORE}/orders/2026-11-17/{SHA}#part",
        f"{STORE}/orders/2026-11-17/{SHA}/",
        f"{STORE}/orders/2026-11-17/{SHA}\n",
        f"{STORE}/orders/2026-13-17/{SHA}",
        f"{STORE}/a/b/2026-11-17/{SHA}",
        f"{STORE}@evil.example/{KEY}",
        f"{STORE}?{KEY}",
        STORE,
    ],
)
def test_forged_uri_is_never_resolved(uri: str) -> None:
    with pytest.raises(ClaimForged, match=r"orders-3 at offset 17.*nothing was fetched"):
        resolve(Claim(uri, 5, SHA), [STORE], PLACE)


def test_uri_with_the_hash_of_another_object_is_forged() -> None:
    with pytest.raises(ClaimForged, match="another hash"):
        resolve(Claim(GOOD.uri, 5, "cd" * 32), [STORE], PLACE)


def test_key_has_the_date_in_utc() -> None:
    assert str(key_for("orders", 1_700_006_399_999, SHA)) == f"orders/2023-11-14/{SHA}"
    assert str(key_for("orders", 1_700_006_400_000, SHA)) == f"orders/2023-11-15/{SHA}"


def test_key_parses_back() -> None:
    key = key_for("a.b_c-D", 0, SHA)
    assert parse_key(str(key)) == key
