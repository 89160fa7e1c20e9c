"""The pytest plugin: fixtures, a marker and an ini option. Everything else is imported when a fixture is first used.

    tidemill_broker            a broker for this test alone
    tidemill_cluster           three brokers for this test alone
    tidemill_large_payloads    a folder for large payloads, for this test alone
    tidemill_session_broker    one broker for the whole run (for each worker, with pytest-xdist)

Settings are broker configurations: `tidemill_settings` in the ini file for all, `@pytest.mark.tidemill(...)` for a test, a
class or a module. Closer marks come first.

`@pytest.mark.tidemill(security="SASL_SSL")` secures the broker or cluster of a test; a `tidemill.testing.Security` has users
and ACLs, too. `tidemill_security` in the ini file, or a fixture of that name in the project's conftest.py, secures every
broker whose test has no such mark, and so the session's broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidemill.claims.large_payloads import LargePayloads
    from tidemill.testing.broker import InProcessBroker
    from tidemill.testing.cluster import InProcessCluster
    from tidemill.testing.security import Security

_INI = "tidemill_settings"
_SECURITY_INI = "tidemill_security"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_INI, "Broker settings of Tidemill's fixtures, one key=value a line.", type="linelist")
    parser.addini(
        _SECURITY_INI, "Protocol of Tidemill's fixtures: SASL_SSL, SASL_PLAINTEXT or SSL.", default=""
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "tidemill(settings, security=None, **settings): broker settings for the tidemill fixtures, as in "
        '**{"log.retention.ms": 1000}; security is a protocol or a tidemill.testing.Security',
    )


def _ini_settings(config: pytest.Config) -> dict[str, object]:
    settings: dict[str, object] = {}
    for line in config.getini(_INI):
        key, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"{_INI}: {line!r} should be key=value")
        settings[key.strip()] = value.strip()
    return settings


def _arguments(request: pytest.FixtureRequest, security: Security | str | None) -> dict[str, Any]:
    """The arguments of a test's broker or cluster. A mark overrides `security`, also with None."""
    settings = _settings(request)
    return {"security": settings.pop("security", security), "settings": settings}


def _settings(request: pytest.FixtureRequest) -> dict[str, object]:
    settings = _ini_settings(request.config)
    for mark in reversed(list(request.node.iter_markers("tidemill"))):
        for mapping in (*mark.args, mark.kwargs):
            settings.update(mapping)
    return settings


@pytest.fixture(scope="session")
def tidemill_security(request: pytest.FixtureRequest) -> Security | str | None:
    """The security of brokers without a mark. Override it in conftest.py to return a `tidemill.testing.Security`."""
    return request.config.getini(_SECURITY_INI) or None


@pytest.fixture
def tidemill_large_payloads(tmp_path_factory: pytest.TempPathFactory) -> LargePayloads:
    """A folder as the store of values above 1,000 bytes; give it to clients as `large_payloads`."""
    from tidemill.claims.large_payloads import LargePayloads

    return LargePayloads(str(tmp_path_factory.mktemp("large-payloads")), threshold_bytes=1_000)


@pytest.fixture
def tidemill_broker(
    request: pytest.FixtureRequest, tidemill_security: Security | str | None
) -> Iterator[InProcessBroker]:
    """A Kafka broker in this process, for this test alone; see `tidemill.testing.InProcessBroker`."""
    from tidemill.testing.broker import InProcessBroker

    with InProcessBroker(**_arguments(request, tidemill_security)) as broker:
        yield broker
    broker.faults.check_all_used()


@pytest.fixture
def tidemill_cluster(
    request: pytest.FixtureRequest, tidemill_security: Security | str | None
) -> Iterator[InProcessCluster]:
    """Three brokers in this process, for this test alone; see `tidemill.testing.InProcessCluster`."""
    from tidemill.testing.cluster import InProcessCluster

    with InProcessCluster(**_arguments(request, tidemill_security)) as cluster:
        yield cluster
    cluster.faults.check_all_used()


@pytest.fixture(scope="session")
def tidemill_session_broker(
    request: pytest.FixtureRequest, tidemill_security: Security | str | None
) -> Iterator[InProcessBroker]:
    """One broker for all tests of the run, which must use different topic names."""
    from tidemill.testing.broker import InProcessBroker

    with InProcessBroker(_ini_settings(request.config), security=tidemill_security) as broker:
        yield broker
    broker.faults.check_all_used()
