"""Names of principals, of certificates, and the rules between them."""

from __future__ import annotations

import pytest

from tidemill.errors import ConfigError
from tidemill.security.principals import (
    ANONYMOUS,
    NoMatchingRule,
    Principal,
    PrincipalMapping,
)


def test_principal_is_read_as_it_is_written() -> None:
    assert str(Principal.user("alice")) == "User:alice"
    assert Principal.parse("User:CN=a:b") == Principal("User", "CN=a:b")
    assert Principal.parse(str(ANONYMOUS)) == ANONYMOUS


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:", ":"])
def test_principal_without_type_or_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TYPE:NAME"):
        Principal.parse(text)


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
