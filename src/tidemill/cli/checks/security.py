"""The checks of a cluster's security: certificates that end, listeners in the clear, and rules that let everybody in.

A broker that only its own machine reaches needs none of that, and gets no warning. Nothing here prints a secret: settings
are named, never shown, and of certificates only their end.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tidemill.cli.checks.finding import Finding, ok, problem, warning
from tidemill.cli.checks.network import is_loopback
from tidemill.cli.table import plural
from tidemill.client.admin.security import SecurityAdmin
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address, Connection
from tidemill.config import BrokerConfig
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.security.acls import WILDCARD, AclBinding, AclFilter, Operation, Permission
from tidemill.tls.settings import TlsSettings

_EXPIRES_SOON_DAYS = 30
_DAY_S = 86_400
_RENEW = "sign a new one with `tidemill security renew`; brokers take it up without a restart"
_SAFE = "`tidemill security init` makes the files of a cluster with TLS, users and ACLs"
_HIDDEN_FROM_US = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


class ListenerFact(NamedTuple):
    name: str
    protocol: str
    host: str
    mechanisms: tuple[str, ...] = ()

    @property
    def is_exposed(self) -> bool:
        return not is_loopback(self.host)


class Facts(NamedTuple):
    """The facts in a broker's settings that matter for its security."""

    whose: str
    listeners: list[ListenerFact]
    has_authorizer: bool
    allows_without_acl: bool


# -- judgements -------------------------------------------------------------------------------------------------


def judge(facts: Facts) -> list[Finding]:
    findings = [each for listener in facts.listeners for each in _listener(facts.whose, listener)]
    is_exposed = any(each.is_exposed for each in facts.listeners)
    check = f"authorizer of {facts.whose}"
    if facts.allows_without_acl and facts.has_authorizer:
        findings.append(
            warning(
                check,
                "allow.everyone.if.no.acl.found=true: whatever no ACL covers is open to everybody",
                "give those who need it ACLs (`tidemill acls add`), then remove the setting",
            )
        )
    elif not facts.has_authorizer and is_exposed:
        findings.append(
            warning(
                check,
                "there is none: whoever connects may read, write and delete everything",
                f"set authorizer.class.name and super.users; {_SAFE}",
            )
        )
    else:
        findings.append(ok(check, "on" if facts.has_authorizer else "none; only this machine reaches it"))
    return findings


def _listener(whose: str, listener: ListenerFact) -> list[Finding]:
    check = f"listener {listener.name} of {whose}"
    if listener.protocol.endswith("SSL"):
        return [ok(check, listener.protocol)]
    if not listener.is_exposed:
        return [ok(check, f"{listener.protocol}, on loopback only")]
    if "PLAIN" in listener.mechanisms:
        return [
            problem(
                check,
                "it takes passwords in the clear (PLAIN over SASL_PLAINTEXT): whoever reads the network has them",
                "make it SASL_SSL, or take PLAIN out of sasl.enabled.mechanisms",
            )
        ]
    return [
        warning(
            check,
            f"it is {listener.protocol}: whoever reads the network reads everything that passes it",
            f"make it SASL_SSL, or bind it to 127.0.0.1; {_SAFE}",
        )
    ]


def certificate(check: str, expires_s: float, now_s: float) -> Finding:
    days = int((expires_s - now_s) // _DAY_S)
    until = time.strftime("%Y-%m-%d", time.gmtime(expires_s))
    if expires_s <= now_s:
        return problem(check, f"it ended on {until}", _RENEW)
    if days < _EXPIRES_SOON_DAYS:
        return warning(check, f"it ends on {until}, in {plural(days, 'day')}", _RENEW)
    return ok(check, f"valid until {until}")


def rules(acls: Iterable[AclBinding]) -> list[Finding]:
    found = list(acls)
    if not found:
        return [
            warning(
                "ACLs",
                "there is none: only super users can work",
                "`tidemill acls add` gives users rights",
            )
        ]
    findings = [ok("ACLs", plural(len(found), "rule"))]
    for each in found:
        is_all = each.operation == Operation.ALL and each.resource_name == WILDCARD
        if each.principal == "User:*" and each.permission == Permission.ALLOW and is_all:
            findings.append(
                warning(
                    "ACLs", f"everybody may do everything: {each}", "`tidemill acls remove` takes it away"
                )
            )
    return findings


# -- a running cluster ------------------------------------------------------------------------------------------


def cluster_security(cluster: Cluster, connections: Mapping[Address, Connection]) -> list[Finding]:
    findings = []
    for address, connection in connections.items():
        if connection.certificate_expires_s is not None:
            check = f"certificate of {address}"
            findings.append(certificate(check, connection.certificate_expires_s, time.time()))
    try:
        for broker_id in cluster.broker_ids():
            findings += judge(_facts_of_broker(cluster, broker_id))
        findings += _rules_of_cluster(cluster)
    except ApiError as error:
        if error.code not in _HIDDEN_FROM_US:
            raise
        findings.append(ok("security", "this user may not see the settings and rules of the cluster"))
    return findings


def _rules_of_cluster(cluster: Cluster) -> list[Finding]:
    try:
        return rules(SecurityAdmin(cluster).acls(AclFilter()))
    except ApiError as error:
        # The authorizer's own check has said what that means.
        if error.code in (ErrorCode.SECURITY_DISABLED, ErrorCode.UNSUPPORTED_VERSION):
            return []
        raise


def _facts_of_broker(cluster: Cluster, broker_id: int) -> Facts:
    described = Admin(cluster).describe_configs(ResourceType.BROKER, str(broker_id))
    settings = {each.name: each.value or "" for each in described}
    protocols = dict(_pairs(settings.get("listener.security.protocol.map", "")))
    mechanisms = tuple(filter(None, settings.get("sasl.enabled.mechanisms", "").split(",")))
    listeners = []
    for name, address in _listeners(settings.get("listeners", "")):
        protocol = protocols.get(name, name)
        has_sasl = protocol.startswith("SASL")
        listeners.append(ListenerFact(name, protocol, address.host, mechanisms if has_sasl else ()))
    return Facts(
        f"broker {broker_id}",
        listeners,
        bool(settings.get("authorizer.class.name")),
        settings.get("allow.everyone.if.no.acl.found") == "true",
    )


def _listeners(text: str) -> Iterable[tuple[str, Address]]:
    for each in filter(None, text.split(",")):
        name, _, place = each.strip().partition("://")
        host, _, port = place.rpartition(":")
        # Without a host it listens everywhere.
        yield name, Address(host.strip("[]") or "0.0.0.0", int(port) if port.isdecimal() else 0)


def _pairs(text: str) -> Iterable[tuple[str, str]]:
    for each in filter(None, text.split(",")):
        name, _, protocol = each.strip().partition(":")
        yield name, protocol


# -- a broker's own files ---------------------------------------------------------------------------------------


def configuration_security(path: Path, config: BrokerConfig) -> list[Finding]:
    network, security = config.network, config.security.listeners
    listeners = []
    for each in (*network.listeners, *network.controller_listeners):
        sasl = security[each.name].sasl
        mechanisms = () if sasl is None else sasl.mechanisms
        host = each.host or "0.0.0.0"
        listeners.append(ListenerFact(each.name, security[each.name].protocol, host, mechanisms))
    authorization = config.authorization
    facts = Facts("this node", listeners, authorization.is_enabled, authorization.allows_without_acl)
    findings = judge(facts)
    has_secret = any(each.login is not None or each.sasl is not None for each in security.values())
    files = [path] if has_secret else []
    files += [
        Path(each.sasl.plain_users_file)
        for each in security.values()
        if each.sasl and each.sasl.plain_users_file
    ]
    for tls in {each.tls for each in security.values() if each.tls is not None}:
        findings += _stores(tls)
        if tls.key_store is not None:
            files += [Path(file) for file in tls.key_store.files]
    return findings + [_secret_file(file) for file in dict.fromkeys(files)]


def _stores(tls: TlsSettings) -> list[Finding]:
    location = tls.key_store.location if tls.key_store is not None else None
    if location is None:
        return []
    check = f"certificate {location}"
    try:
        from tidemill.tls.certificates import expires_s
    except TidemillError as error:
        return [ok(check, f"not looked at: {error}")]
    try:
        return [certificate(check, expires_s(Path(location).read_text(encoding="utf-8")), time.time())]
    except OSError as error:
        return [problem(check, f"it cannot be read: {error.strerror}", "correct ssl.keystore.location")]
    except ValueError:
        return [ok(check, "not looked at: it is not PEM")]


def _secret_file(path: Path) -> Finding:
    check = f"secrets in {path}"
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return problem(check, f"it cannot be read: {error.strerror}", "correct its path")
    if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        return warning(check, f"others may read it: mode {stat.S_IMODE(mode):o}", f"chmod 600 {path}")
    return ok(check, "only its owner reads it")
