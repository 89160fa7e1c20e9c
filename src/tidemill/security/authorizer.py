"""Decides what a principal may do: Kafka's StandardAuthorizer over one set of rules.

Super users may do everything. For others, a DENY that covers the principal, host, operation and resource wins over every
ALLOW, whichever of them names the resource more closely. An ALLOW of Read, Write, Delete or Alter includes Describe, and of
AlterConfigs DescribeConfigs. `allow.everyone.if.no.acl.found` counts only where no rule of any
principal covers the resource.

An authorizer is made from the rules of one metadata image and never changes; other rules make another one. So its table
of past decisions, which is bounded, never outlives the rules. Rules are found by name: literal ones in one look-up, prefixed
ones in one look-up for each length that any prefix has, those for `*` apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tidemill.errors import ConfigError
from tidemill.security.acls import (
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from tidemill.security.principals import USER_TYPE, Principal

_DECISIONS_KEPT_MAX = 20_000
_EVERYBODY = f"{USER_TYPE}:{WILDCARD}"


@dataclass(frozen=True, slots=True)
class Decision:
    """`rule` names what decided, for the audit log and for `explain`."""

    allowed: bool
    rule: str


_SUPER_USER = Decision(True, "SuperUser")
_DEFAULT_DENY = Decision(False, "DefaultDeny")
_NO_RULE_ALLOWS = Decision(True, "DefaultAllow, as no ACL covers the resource")
_NO_RULE_DENIES = Decision(False, "DefaultDeny, as no ACL covers the resource")

# The rules of one pattern, by principal.
_Rules = dict[str, list[AclBinding]]


@dataclass(slots=True)
class _ResourceRules:
    """The rules for one kind of resource."""

    literal: dict[str, _Rules] = field(default_factory=dict)
    prefixed: dict[str, _Rules] = field(default_factory=dict)
    # The longest first: of several denials the closest one is reported.
    prefix_lengths: list[int] = field(default_factory=list)
    everything: _Rules = field(default_factory=dict)

    def add(self, binding: AclBinding) -> None:
        patterns = self._patterns(binding)
        rules = self.everything if patterns is None else patterns.setdefault(binding.resource_name, {})
        rules.setdefault(binding.principal, []).append(binding)

    def remove(self, binding: AclBinding) -> None:
        patterns = self._patterns(binding)
        rules = self.everything if patterns is None else patterns[binding.resource_name]
        rules[binding.principal].remove(binding)
        if not rules[binding.principal]:
            del rules[binding.principal]
        if patterns is not None and not rules:
            del patterns[binding.resource_name]

    def copy(self) -> _ResourceRules:
        """Shares the rules of each pattern; `unshare` before one changes."""
        return _ResourceRules(
            dict(self.literal), dict(self.prefixed), list(self.prefix_lengths), self.everything
        )

    def unshare(self, binding: AclBinding) -> None:
        """Makes the rules of the binding's pattern this object's own."""
        patterns = self._patterns(binding)
        if patterns is None:
            self.everything = _copied(self.everything)
        elif binding.resource_name in patterns:
            patterns[binding.resource_name] = _copied(patterns[binding.resource_name])

    def _patterns(self, binding: AclBinding) -> dict[str, _Rules] | None:
        """Returns the map of the binding's kind of pattern, by resource name; None for the pattern that matches all."""
        if binding.pattern_type == PatternType.PREFIXED:
            return self.prefixed
        return None if binding.resource_name == WILDCARD else self.literal

    def index_prefixes(self) -> None:
        self.prefix_lengths = sorted({len(prefix) for prefix in self.prefixed}, reverse=True)

    def covering(self, name: str) -> Iterator[_Rules]:
        rules = self.literal.get(name)
        if rules is not None:
            yield rules
        for length in self.prefix_lengths:
            if length <= len(name):
                rules = self.prefixed.get(name[:length])
                if rules is not None:
                    yield rules
        if self.everything:
            yield self.everything


def _copied(rules: _Rules) -> _Rules:
    return {principal: list(bindings) for principal, bindings in rules.items()}


class Authorizer:
    def __init__(
        self,
        bindings: Iterable[AclBinding],
        *,
        super_users: frozenset[Principal] = frozenset(),
        allows_without_acl: bool = False,
    ) -> None:
        self._super_users = super_users
        self._without_rule = _NO_RULE_ALLOWS if allows_without_acl else _NO_RULE_DENIES
        self._rules: dict[int, _ResourceRules] = {}
        for binding in bindings:
            self._rules.setdefault(binding.resource_type, _ResourceRules()).add(binding)
        for rules in self._rules.values():
            rules.index_prefixes()
        self._decided: dict[tuple[Principal, str, int, Resource], Decision] = {}

    def changed(self, removed: Iterable[AclBinding], added: Iterable[AclBinding]) -> Authorizer:
        """Another authorizer, which shares what did not change: its cost is that of a copy of the names."""
        other = Authorizer([], super_users=self._super_users)
        other._without_rule = self._without_rule
        other._rules = dict(self._rules)
        removed, added = list(removed), list(added)
        own: dict[int, _ResourceRules] = {}
        unshared: set[tuple[int, int, str]] = set()
        for binding in (*removed, *added):
            kind = binding.resource_type
            if kind not in own:
                known = self._rules.get(kind)
                own[kind] = other._rules[kind] = _ResourceRules() if known is None else known.copy()
            pattern = (kind, binding.pattern_type, binding.resource_name)
            if pattern not in unshared:
                unshared.add(pattern)
                own[kind].unshare(binding)
        for binding in removed:
            own[binding.resource_type].remove(binding)
        for binding in added:
            own[binding.resource_type].add(binding)
        for rules in own.values():
            rules.index_prefixes()
        return other

    def authorize(self, principal: Principal, host: str, operation: int, resource: Resource) -> Decision:
        """`host` is the address from which the principal speaks."""
        key = (principal, host, operation, resource)
        decision = self._decided.get(key)
        if decision is None:
            decision = self._decide(principal, host, operation, resource)
            if len(self._decided) >= _DECISIONS_KEPT_MAX:
                self._decided.clear()
            self._decided[key] = decision
        return decision

    def allows(self, principal: Principal, host: str, operation: int, resource: Resource) -> bool:
        return self.authorize(principal, host, operation, resource).allowed

    def authorized_operations(self, principal: Principal, host: str, resource: Resource) -> int:
        """Bit n stands for operation n: what Metadata and the describing APIs show (KIP-430)."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource.type]
            if self.allows(principal, host, operation, resource)
        )

    def authorize_by_resource_type(
        self, principal: Principal, host: str, operation: int, resource_type: ResourceType
    ) -> bool:
        """Whether there could be a resource of that type on which the operation is allowed."""
        # A name that no rule is made for: super users, rules for everything, and the default.
        if self.allows(principal, host, operation, Resource(resource_type, "hardcode")):
            return True
        allowing: list[AclBinding] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for binding in self._of_principal(principal, host, operation, resource_type):
            if binding.permission == Permission.ALLOW:
                allowing.append(binding)
            elif binding.pattern_type == PatternType.PREFIXED:
                denied_prefixes.add(binding.resource_name)
            elif binding.resource_name == WILDCARD:
                return False
            else:
                denied_names.add(binding.resource_name)
        for binding in allowing:
            name = binding.resource_name
            is_literal = binding.pattern_type == PatternType.LITERAL
            if is_literal and name == WILDCARD:
                return True
            is_denied = (is_literal and name in denied_names) or any(
                name[:length] in denied_prefixes for length in range(1, len(name) + 1)
            )
            if not is_denied:
                return True
        return False

    def explain(self, principal: Principal, host: str, operation: int, resource: Resource) -> list[str]:
        """Returns the deciding rule, then every rule that covers the resource with the reason why it does not count."""
        decision = self.authorize(principal, host, operation, resource)
        lines = [f"{'ALLOWED' if decision.allowed else 'DENIED'} by {decision.rule}"]
        rules = self._rules.get(resource.type)
        for group in rules.covering(resource.name) if rules is not None else ():
            for bindings in group.values():
                lines += [f"{each}: {self._reason(each, principal, host, operation)}" for each in bindings]
        return lines

    def _reason(self, binding: AclBinding, principal: Principal, host: str, operation: int) -> str:
        if binding.principal not in (str(principal), _EVERYBODY):
            return "for another principal"
        if not binding.covers_host(host):
            return "for another host"
        if not binding.covers_operation(operation):
            return "for another operation"
        return "applies"

    def _decide(self, principal: Principal, host: str, operation: int, resource: Resource) -> Decision:
        if principal in self._super_users:
            return _SUPER_USER
        rules = self._rules.get(resource.type)
        if rules is None:
            return self._without_rule
        name = str(principal)
        is_covered = False
        allowing: AclBinding | None = None
        for group in rules.covering(resource.name):
            is_covered = True
            for each in (name, _EVERYBODY):
                for binding in group.get(each, ()):
                    if not (binding.covers_operation(operation) and binding.covers_host(host)):
                        continue
                    if binding.permission == Permission.DENY:
                        return Decision(False, f"MatchingAcl({binding})")
                    allowing = allowing or binding
        if allowing is not None:
            return Decision(True, f"MatchingAcl({allowing})")
        return _DEFAULT_DENY if is_covered else self._without_rule

    def _of_principal(
        self, principal: Principal, host: str, operation: int, resource_type: ResourceType
    ) -> Iterator[AclBinding]:
        """Rules for exactly this operation, or all: nothing is implied here, as in Kafka."""
        rules = self._rules.get(resource_type)
        if rules is None:
            return
        for group in (*rules.literal.values(), *rules.prefixed.values(), rules.everything):
            for each in (str(principal), _EVERYBODY):
                for binding in group.get(each, ()):
                    if binding.operation in (operation, Operation.ALL) and binding.covers_host(host):
                        yield binding


def parse_super_users(text: str) -> frozenset[Principal]:
    """`super.users`: principals separated by semicolons, since names of certificates hold commas."""
    users = set()
    for each in filter(None, (part.strip() for part in text.split(";"))):
        try:
            users.add(Principal.parse(each))
        except ValueError as error:
            raise ConfigError(f"super.users: {error}") from None
    return frozenset(users)
