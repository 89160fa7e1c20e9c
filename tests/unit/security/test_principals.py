"""Names of principals, of certificates, and the rules between them."""

from __future__ import annotations

import pytest

from tidemill.errors import ConfigError
from tidemill.security.principals import (
    ANONYMOUS,
    NoMatchingRule,
    Principal,
    PrincipalMapping,
    Subject,
    distinguished_name,
)

# As `getpeercert()` returns it: in the order of the certificate.
SUBJECT: Subject = (
    (("countryName", "US"),),
    (("organizationName", "Acme, Inc."),),
    (("organizationalUnitName", "shop"),),
    (("commonName", "web.acme.com"),),
)


def test_principal_is_read_as_it_is_written() -> None:
    assert str(Principal.user("alice")) == "User:alice"
    assert Principal.parse("User:CN=a:b") == Principal("User", "CN=a:b")
    assert Principal.parse(str(ANONYMOUS)) == ANONYMOUS


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:", ":"])
def test_principal_without_type_or_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TYPE:NAME"):
        Principal.parse(text)


def test_distinguished_name_has_the_most_specific_part_first_and_escapes() -> None:
    assert distinguished_name(SUBJECT) == "CN=web.acme.com,OU=shop,O=Acme\\, Inc.,C=US"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('a"b', 'a\\"b'),
        ("a+b<c>;d\\", "a\\+b\\<c\\>\\;d\\\\"),
        ("#1", "\\#1"),
        (" both ", "\\ both\\ "),
        (" ", "\\ "),
        ("Zoë", "Zoë"),
        ("a\nb", "a\nb"),
    ],
)
def test_values_are_escaped_as_rfc_2253_says(value: str, written: str) -> None:
    assert distinguished_name(((("commonName", value),),)) == f"CN={written}"


def test_attributes_of_one_relative_name_are_joined_by_plus() -> None:
    subject: Subject = ((("commonName", "a"), ("userId", "7")),)
    assert distinguished_name(subject) == "CN=a+UID=7"


def test_attribute_without_a_keyword_is_a_number_with_der() -> None:
    assert distinguished_name(((("emailAddress", "a@b"),),)) == "1.2.840.113549.1.9.1=#1603614062"
    assert distinguished_name(((("serialNumber", "7"),),)) == "2.5.4.5=#130137"
    assert distinguished_name(((("1.2.3.4", "é"),),)) == "1.2.3.4=#0c02c3a9"
    assert distinguished_name(((("title", "x" * 200),),)).startswith("2.5.4.12=#1381c878")


def test_default_rule_keeps_the_name() -> None:
    assert PrincipalMapping().principal(SUBJECT) == Principal(
        "User", "CN=web.acme.com,OU=shop,O=Acme\\, Inc.,C=US"
    )


RULES = ",".join(
    (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        " RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


@pytest.mark.parametrize(
    ("name", "mapped"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,cn=JavaSoft,O=Sun", "JAVASOFT"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_first_rule_that_matches_the_whole_name_applies(name: str, mapped: str) -> None:
    assert PrincipalMapping(RULES).name_of(name) == mapped


def test_name_that_no_rule_matches_is_refused() -> None:
    with pytest.raises(NoMatchingRule, match="CN=b"):
        PrincipalMapping("RULE:^CN=(a),.*$/$1/").name_of("CN=b,O=x")


def test_replacement_escapes_and_missing_groups_stay_text() -> None:
    assert PrincipalMapping(r"RULE:CN=(a)(b)?/\$1$1$2$7/").name_of("CN=a") == "$1a$7"
    assert PrincipalMapping(r"RULE:CN=a\/(.*)/$1/").name_of("CN=a/b") == "b"


def test_characters_of_any_script_are_matched_by_a_dot_and_kept() -> None:
    assert PrincipalMapping("RULE:CN=(.*),O=.*/$1/").name_of("CN=山田 Ω,O=x") == "山田 Ω"


@pytest.mark.parametrize(
    "rules", ["", "RULE:a/b", "RULE:(/x/", "DEFAULTX", "RULE:a/b/X", "DEFAULT,", r"RULE:(?=a)/b/", "RULE:a"]
)
def test_rules_that_cannot_be_read_stop_the_start(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


def test_pattern_that_would_backtrack_for_ever_ends() -> None:
    mapping = PrincipalMapping("RULE:CN=(a+)+b/$1/,DEFAULT")
    name = "CN=" + "a" * 2_000
    assert mapping.name_of(name) == name
