"""`tidemill doctor` and `tidemill bench` against a cluster with SASL_SSL. No secret is printed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import command
from tests.certificates import Authority
from tests.cli.conftest import LIMIT_S
from tidemill.cli.checks.doctor import _config
from tidemill.cli.checks.finding import Finding, Verdict
from tidemill.cli.checks.security import Facts, ListenerFact, certificate, judge, rules
from tidemill.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from tidemill.testing import InProcessBroker, Security

SECRET = "open-sesame"
USERS = {"alice": SECRET, "bob": SECRET}
RULES = {
    "alice": ["all topic:*", "all group:*", "describe cluster", "describe-configs cluster", "create cluster"]
}


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(security=Security("SASL_SSL", users=USERS, acls=RULES)) as broker:
        yield broker


def run(*words: str) -> tuple[int, str]:
    done = subprocess.run([*command(), *words], capture_output=True, timeout=LIMIT_S, check=False, text=True)
    assert SECRET not in done.stdout + done.stderr
    return done.returncode, done.stdout


def doctor(broker: InProcessBroker, user: str) -> dict[str, Finding]:
    options = broker.client_options(user)
    words = ("--bootstrap", broker.bootstrap, "--command-config", str(options.properties_file))
    _, printed = run("doctor", "--json", *words)
    found = [each for each in json.loads(printed)["checks"] if each.pop("area") == "security"]
    return {each["check"]: Finding(**each) for each in found}


def test_doctor_of_an_admin_judges_certificate_listener_authorizer_and_rules(broker: InProcessBroker) -> None:
    found = doctor(broker, "admin")
    certificate_of_broker = found[f"certificate of {broker.bootstrap}"]
    assert certificate_of_broker.verdict == Verdict.WARNING
    assert "in 1 day" in certificate_of_broker.text
    assert "tidemill security renew" in (certificate_of_broker.remedy or "")
    assert found["listener CLIENTS of broker 1"].text == "SASL_SSL"
    assert found["authorizer of broker 1"].text == "on"
    assert found["ACLs"].text == "5 rules"


def test_doctor_of_a_user_without_rights_says_so(broker: InProcessBroker) -> None:
    found = doctor(broker, "bob")
    assert found["security"].text == "this user may not see the settings and rules of the cluster"


@pytest.mark.parametrize("client", ["confluent", "tidemill"])
def test_bench_measures_over_sasl_ssl(broker: InProcessBroker, client: str) -> None:
    options = broker.client_options("alice")
    words = ("--bootstrap", broker.bootstrap, "--command-config", str(options.properties_file))
    load = ("--seconds", "0.3", "--record-bytes", "100", "--rate", "50", "--client", client)
    code, printed = run("bench", "--json", *load, *words)
    assert code == 0
    results = json.loads(printed)["results"]
    assert [each["load"] for each in results] == ["produce", "consume", "end-to-end"]
    assert all(each["records"] > 0 and each["errors"] == 0 for each in results)


# -- judgements --------------------------------------------------------------------------------------------------


def verdicts(facts: Facts) -> dict[str, Verdict]:
    return {each.check: each.verdict for each in judge(facts)}


def facts(listener: ListenerFact, *, has_authorizer: bool = True, allows_without_acl: bool = False) -> Facts:
    return Facts("it", [listener], has_authorizer, allows_without_acl)


@pytest.mark.parametrize(
    ("listener", "verdict"),
    [
        (ListenerFact("A", "PLAINTEXT", "127.0.0.1"), Verdict.OK),
        (ListenerFact("A", "PLAINTEXT", "0.0.0.0"), Verdict.WARNING),
        (ListenerFact("A", "SASL_PLAINTEXT", "10.0.0.1", ("SCRAM-SHA-512",)), Verdict.WARNING),
        (ListenerFact("A", "SASL_PLAINTEXT", "10.0.0.1", ("SCRAM-SHA-512", "PLAIN")), Verdict.PROBLEM),
        (ListenerFact("A", "SASL_SSL", "10.0.0.1", ("PLAIN",)), Verdict.OK),
        (ListenerFact("A", "SSL", "0.0.0.0"), Verdict.OK),
    ],
)
def test_listener_is_judged_by_protocol_address_and_mechanisms(
    listener: ListenerFact, verdict: Verdict
) -> None:
    assert verdicts(facts(listener))["listener A of it"] is verdict


def test_missing_authorizer_is_a_warning_only_where_others_reach_the_broker() -> None:
    exposed, own = ListenerFact("A", "SSL", "0.0.0.0"), ListenerFact("A", "PLAINTEXT", "127.0.0.1")
    assert verdicts(facts(exposed, has_authorizer=False))["authorizer of it"] is Verdict.WARNING
    assert verdicts(facts(own, has_authorizer=False))["authorizer of it"] is Verdict.OK
    assert verdicts(facts(exposed, allows_without_acl=True))["authorizer of it"] is Verdict.WARNING


@pytest.mark.parametrize(
    ("days", "verdict"),
    [(-1, Verdict.PROBLEM), (1, Verdict.WARNING), (29, Verdict.WARNING), (31, Verdict.OK)],
)
def test_certificate_is_judged_by_the_days_that_it_has(days: int, verdict: Verdict) -> None:
    now_s = time.time()
    assert certificate("it", now_s + days * 86_400 + 60, now_s).verdict is verdict


def test_rules_for_everybody_and_no_rules_are_warnings() -> None:
    topic = (ResourceType.TOPIC, "*", PatternType.LITERAL)
    everybody = AclBinding(*topic, "User:*", "*", Operation.ALL, Permission.ALLOW)
    one = everybody._replace(principal="User:alice")
    assert [each.verdict for each in rules([one])] == [Verdict.OK]
    assert [each.verdict for each in rules([one, everybody])] == [Verdict.OK, Verdict.WARNING]
    assert [each.verdict for each in rules([])] == [Verdict.WARNING]


def test_files_of_a_broker_are_judged_and_no_secret_is_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    expired = authority.issue("node", is_expired=True)
    path = tmp_path / "server.properties"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    path.write_text(
        "listeners=A://0.0.0.0:0\nlistener.security.protocol.map=A:SASL_SSL\ninter.broker.listener.name=A\n"
        f"ssl.keystore.location={expired}\nssl.truststore.location={authority.path}\n"
        "sasl.enabled.mechanisms=SCRAM-SHA-512\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
        f'listener.name.a.scram-sha-512.sasl.jaas.config={login} username="node" password="{SECRET}";\n'
        "log.dirs=/tmp/none\n"
    )
    path.chmod(0o644)
    expired.chmod(0o600)
    _, findings = _config(path)
    found = {each.check: each for each in findings}
    assert found[f"certificate {expired}"].verdict is Verdict.PROBLEM
    assert found[f"secrets in {path}"].remedy == f"chmod 600 {path}"
    assert found[f"secrets in {expired}"].verdict is Verdict.OK
    assert found["authorizer of this node"].verdict is Verdict.WARNING
    assert SECRET not in str(findings)
