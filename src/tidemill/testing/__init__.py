"""Brokers for tests of Kafka code: production nodes in this process, with a clock and faults that a test controls.

The pytest plugin (`plugin.py`, installed with the package) has the fixtures `tidemill_broker`, `tidemill_cluster` and
`tidemill_session_broker`. Without pytest, `InProcessBroker` and `InProcessCluster` are context managers.
docs/testing.md shows both.

Names are imported on first use: pytest loads this package in every project that has it installed, and a project
without a broker should not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.testing.broker import InProcessBroker
    from tidemill.testing.clock import TravelClock
    from tidemill.testing.cluster import InProcessCluster
    from tidemill.testing.faults import Faults, UnusedFault
    from tidemill.testing.records import StoredRecord
    from tidemill.testing.security import Security

__all__ = [
    "Faults",
    "InProcessBroker",
    "InProcessCluster",
    "Security",
    "StoredRecord",
    "TravelClock",
    "UnusedFault",
]

_HOMES = {
    "Faults": "faults",
    "InProcessBroker": "broker",
    "InProcessCluster": "cluster",
    "Security": "security",
    "StoredRecord": "records",
    "TravelClock": "clock",
    "UnusedFault": "faults",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
