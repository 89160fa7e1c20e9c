"""The table itself: every capability that an adapter lacks has its reason, and every reason has its gap."""

from __future__ import annotations

import inspect

import pytest

from tests.interop.clients import Client, GapError
from tests.interop.table import CLIENTS

EVERYONE_CAN = {"close", "fetch", "missing", "name", "gaps"}
CAPABILITIES = [
    name for name, _ in inspect.getmembers(Client) if not name.startswith("_") and name not in EVERYONE_CAN
]


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_client_has_the_capability_or_a_reason_why_not(kind: type[Client], capability: str) -> None:
    is_implemented = getattr(kind, capability) is not getattr(Client, capability)
    assert is_implemented != (capability in kind.gaps)


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.name)
def test_a_gap_raises_its_reason(kind: type[Client]) -> None:
    for capability, reason in kind.gaps.items():
        with pytest.raises(GapError, match=reason):
            kind._gap(kind.__new__(kind), capability)
