"""Subjects of certificates, as `X500Principal.getName` of OpenJDK 17 wrote them for the same certificates."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type as Type
from cryptography.x509.oid import NameOID, ObjectIdentifier

from tidemill.security.distinguished_names import MalformedCertificate, subject_name
from tidemill.security.principals import Principal, PrincipalMapping

CN, O, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME  # noqa: E741
# An OID, a value, and a type where it is not the usual one.
Attribute = tuple[ObjectIdentifier, str] | tuple[ObjectIdentifier, str, Type]
KEY = ec.generate_private_key(ec.SECP256R1())
DAY = datetime.timedelta(days=1)
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def certificate(*relative_names: list[Attribute]) -> bytes:
    """A certificate in DER; the names are in its order, the least specific first."""
    names = [
        x509.RelativeDistinguishedName([x509.NameAttribute(*attribute) for attribute in relative])
        for relative in relative_names
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(x509.Name([x509.NameAttribute(CN, "issuer")]))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + DAY)
    )
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('q"q', r"q\"q"),
        ("b\\s", r"b\\s"),
        ("a+b,c;d<e>f", r"a\+b\,c\;d\<e\>f"),
        ("a=b", r"a\=b"),
        ("a#b", r"a\#b"),
        ("#ab", r"\#ab"),
        ("  two", r"\ \ two"),
        ("two  ", "two\\ \\ "),
        (" ", "\\ "),
        ("   ", "\\ \\ \\ "),
        ("in side", "in side"),
        ("\\ ", "\\\\\\ "),
        ("\ra\r", "\\\ra\\\r"),
        ("a\rb", "a\rb"),
        ("a\nb", "a\nb"),
        ("a\tb", "a\tb"),
        ("a\0b", r"a\00b"),
        ("a\u00a0", "a\u00a0"),
        ("é€😀", "é€😀"),
    ],
)
def test_values_are_escaped_as_java_does(value: str, written: str) -> None:
    assert subject_name(certificate([(CN, value)])) == f"CN={written}"


@pytest.mark.parametrize(
    ("attribute", "written"),
    [
        ((NameOID.EMAIL_ADDRESS, "a@b.c"), "1.2.840.113549.1.9.1=#16056140622e63"),
        ((NameOID.SERIAL_NUMBER, "123"), "2.5.4.5=#1303313233"),
        ((NameOID.TITLE, "Dr é"), "2.5.4.12=#0c05447220c3a9"),
        ((NameOID.SURNAME, "s"), "2.5.4.4=#0c0173"),
        ((NameOID.GIVEN_NAME, "x" * 200), "2.5.4.42=#0c81c8" + "78" * 200),
        ((NameOID.POSTAL_ADDRESS, "x"), "2.5.4.16=#0c0178"),
        ((NameOID.X500_UNIQUE_IDENTIFIER, "x"), "2.5.4.45=#0c0178"),
        ((NameOID.UNSTRUCTURED_NAME, "p"), "1.2.840.113549.1.9.2=#0c0170"),
        (
            (NameOID.INN, "123456789012", Type.NumericString),
            "1.2.643.3.131.1.1=#120c313233343536373839303132",
        ),
        ((ObjectIdentifier("1.2.3.4.5"), "priv"), "1.2.3.4.5=#0c0470726976"),
        ((CN, "tel", Type.T61String), "CN=tel"),
        ((CN, "bmp", Type.BMPString), r"CN=\00b\00m\00p"),
        ((CN, "12", Type.NumericString), "CN=#12023132"),
    ],
)
def test_attributes_without_a_keyword_and_values_that_are_no_text_are_der(
    attribute: Attribute, written: str
) -> None:
    assert subject_name(certificate([attribute])) == written


def test_most_specific_part_comes_first_and_parts_of_one_are_joined_by_plus() -> None:
    every = [NameOID.USER_ID, NameOID.DOMAIN_COMPONENT, NameOID.STREET_ADDRESS]
    every += [NameOID.STATE_OR_PROVINCE_NAME, NameOID.LOCALITY_NAME]
    parts: list[list[Attribute]] = [[(each, "v")] for each in every]
    name = subject_name(certificate(*parts, [(NameOID.COUNTRY_NAME, "DE")]))
    assert name == "C=DE,L=v,ST=v,STREET=v,DC=v,UID=v"
    assert subject_name(certificate([(CN, "x")], [(OU, "u"), (O, "o")])) == "O=o+OU=u,CN=x"


def test_certificate_without_a_subject_has_an_empty_name() -> None:
    assert subject_name(certificate()) == ""


def test_default_rule_keeps_the_name() -> None:
    shown = certificate([(O, "Acme, Inc.")], [(CN, "web")])
    assert PrincipalMapping().principal(shown) == Principal("User", r"CN=web,O=Acme\, Inc.")


def test_bytes_that_are_cut_or_changed_are_malformed_or_read_and_raise_nothing_else() -> None:
    whole = certificate([(CN, "web")])
    for cut in range(len(whole)):
        with pytest.raises(MalformedCertificate):
            subject_name(whole[:cut])
    for position in range(len(whole)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            changed = whole[:position] + bytes((value,)) + whole[position + 1 :]
            try:
                subject_name(changed)
            except MalformedCertificate:
                continue
