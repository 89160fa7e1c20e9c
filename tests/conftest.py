"""Fixtures that give tests a broker.

`target` is one broker for the whole session, started with default settings, for tests that leave it unharmed and
use topic names of their own. With `TIDEMILL_INTEROP_BOOTSTRAP=host:port` it is the broker that already runs there;
tests that need a process of ours (`broker`, `start`) are then skipped. That is how the expectations are proved
against Apache Kafka.

Interrupts reach this process and all that it starts (`_take_interrupts`), however the tests were started.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import scheduling
from tests.brokers import KEEPS_EVERYTHING, Broker, RunningBroker, raise_descriptor_limit, start_broker
from tests.thoroughness import examples

BOOTSTRAP = os.environ.get("TIDEMILL_INTEROP_BOOTSTRAP")
_topic_numbers = itertools.count(1)


def _take_interrupts() -> None:
    """A shell without job control ignores SIGINT in what it starts in the background, and every child inherits that.

    A handler is not inherited: children of a process that has one begin with the default.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _configure_hypothesis() -> None:
    """Without a deadline: by default an example fails that takes 200 ms, which happens to any on a busy machine."""
    try:
        from hypothesis import settings
    except ImportError:  # environments for one version of Spark
        return
    settings.register_profile("busy machine", deadline=None, max_examples=examples(100))
    settings.load_profile("busy machine")


_take_interrupts()
_configure_hypothesis()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    repeated = scheduling.repeated_id(item.nodeid for item in items)
    if repeated is not None:
        raise pytest.UsageError(f"several tests have the id {repeated}; xdist would run one of them")
    items.sort(key=lambda item: scheduling.rank_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Takes all that was collected out of the garbage collector's sight.

    A worker has imported every test file: 800,000 objects, through which each full collection went for half a second.
    """
    gc.collect()
    gc.freeze()


# Optional: environments for one version of Spark have no xdist.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Called for every kind of distribution; the one by file is ours."""
    return scheduling.scheduler(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _temporary_files_of_spark(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps them among those of the tests. A driver that a test kills leaves them behind, and Java ignores TMPDIR."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Djava.io.tmpdir={tmp_path_factory.mktemp('java')}"


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    if BOOTSTRAP:
        host, port = BOOTSTRAP.rsplit(":", 1)
        yield RunningBroker(host, int(port))
        return
    raise_descriptor_limit(65536)
    with start_broker(tmp_path_factory.mktemp("session") / "data", settings=KEEPS_EVERYTHING) as broker:
        yield broker


@pytest.fixture
def broker(target: RunningBroker) -> Broker:
    """The session's broker, for tests that look at its process or its files."""
    if not isinstance(target, Broker):
        pytest.skip("looks at the broker's process; TIDEMILL_INTEROP_BOOTSTRAP names one that is not ours")
    return target


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts brokers of the test's own, all on `tmp_path / "data"` by default, and stops them."""
    if BOOTSTRAP:
        pytest.skip("starts a broker of its own; TIDEMILL_INTEROP_BOOTSTRAP names one that is not ours")
    started: list[Broker] = []

    def start_one(settings: Mapping[str, str] | None = None, data_dir: Path | None = None) -> Broker:
        started.append(start_broker(data_dir or tmp_path / "data", settings=settings))
        return started[-1]

    yield start_one
    for broker in started:
        broker.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, also not an earlier run against a broker that still runs."""
    return f"t{os.getpid()}-{next(_topic_numbers)}-{request.function.__name__[:60]}"
