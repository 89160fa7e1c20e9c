"""The plugin in a project of its own: test files of a user, run by a pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

_INI = """
[pytest]
filterwarnings = error
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""


@pytest.fixture
def installed(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project whose pytest loads every plugin that is installed."""
    pytester.makeini(_INI)
    return pytester


@pytest.fixture
def project(installed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose pytest loads ours and pytest-asyncio alone: the others take most of the start."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "tidemill.testing.plugin,pytest_asyncio.plugin")
    return installed


def test_fixtures_are_there_without_any_configuration(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        """
        def test_first(tidemill_broker):
            tidemill_broker.produce("orders", "x")
            assert len(tidemill_broker.records("orders")) == 1

        def test_second(tidemill_broker):
            assert tidemill_broker.topics() == []

        def test_cluster(tidemill_cluster):
            tidemill_cluster.produce("orders", "x")
            assert len(tidemill_cluster.brokers) == 3

        def test_session(tidemill_session_broker):
            assert tidemill_session_broker.is_running

        def test_large_payloads(tidemill_session_broker, tidemill_large_payloads):
            from tidemill import Client

            tidemill_session_broker.create_topic("scans")
            with Client(tidemill_session_broker.bootstrap, large_payloads=tidemill_large_payloads) as client:
                client.publish("scans", b"x" * 2_000).result()
                with client.consume("scans", group="g", idle_timeout_s=0.1) as batches:
                    assert [record.value for batch in batches for record in batch] == [b"x" * 2_000]
            assert len(list(tidemill_large_payloads.store.list())) == 1
        """
    )
    installed.runpytest_subprocess().assert_outcomes(passed=5)


def test_nothing_is_left_after_a_test(project: pytest.Pytester) -> None:
    """No thread, no descriptor, no file, no warning; also after a failure, a crash and a fault."""
    project.makepyfile(
        """
        import gc, os, tempfile, threading
        from pathlib import Path
        import pytest

        def left():
            gc.collect()
            folders = list(Path(tempfile.gettempdir()).glob("tidemill-*"))
            return threading.enumerate(), sorted(os.listdir("/proc/self/fd")), folders

        @pytest.fixture(scope="module", autouse=True)
        def clean(tmp_path_factory):
            tempfile.tempdir = str(tmp_path_factory.mktemp("temp"))
            from tidemill.testing import InProcessBroker, InProcessCluster
            with InProcessBroker() as broker:  # what is made once stays: modules, caches
                broker.produce("orders", "x")
            yield
            tempfile.tempdir = None

        @pytest.fixture(autouse=True)
        def nothing_left(clean):
            before = left()
            yield
            assert left() == before

        def test_plain(tidemill_broker):
            tidemill_broker.produce("orders", "x")

        def test_crash(tidemill_broker):
            tidemill_broker.produce("orders", "x")
            tidemill_broker.crash()

        def test_restart(tidemill_broker):
            tidemill_broker.produce("orders", "x")
            tidemill_broker.clock.advance(hours=8)
            tidemill_broker.restart()

        def test_cluster(tidemill_cluster):
            tidemill_cluster.produce("orders", "x")
            tidemill_cluster.brokers[0].crash()
            tidemill_cluster.brokers[1].restart()

        def test_no_start():
            from tidemill.testing import InProcessBroker
            with pytest.raises(Exception):
                with InProcessBroker({"log.cleaner.threads": "x"}):
                    pass
        """
    )
    project.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=5)


def test_an_unused_fault_fails_the_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        def test_forgets_to_send(tidemill_broker):
            tidemill_broker.faults.lose_next_ack("orders")

        def test_may_stay_unused(tidemill_broker):
            tidemill_broker.faults.lose_next_ack("orders", optional=True)
        """
    )
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*UnusedFault: armed but not struck: lose the next answer to Produce of orders*"]
    )


def test_settings_of_ini_file_and_marks(project: pytest.Pytester) -> None:
    project.makeini(_INI + "tidemill_settings =\n    num.partitions=2\n    message.max.bytes = 5000\n")
    project.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.tidemill(**{"num.partitions": 3})

        def partitions(broker):
            return {broker.produce("orders", "x", partition=index).partition for index in range(9) if has(broker, index)}

        def has(broker, index):
            from tidemill.errors import TidemillError
            try:
                broker.produce("orders", "x", partition=index)
                return True
            except TidemillError:
                return False

        def test_of_the_module(tidemill_broker):
            assert len(partitions(tidemill_broker)) == 3

        @pytest.mark.tidemill(**{"num.partitions": 4})
        def test_of_its_own(tidemill_broker):
            assert len(partitions(tidemill_broker)) == 4

        def test_of_the_session(tidemill_session_broker):
            assert len(partitions(tidemill_session_broker)) == 2

        def test_others_stay(tidemill_broker):
            with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
                tidemill_broker.produce("orders", "x" * 6000)
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=4)


def test_a_bad_line_in_the_ini_file(project: pytest.Pytester) -> None:
    project.makeini(_INI + "tidemill_settings = num.partitions\n")
    project.makepyfile("def test_it(tidemill_broker): pass")
    result = project.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'num.partitions' should be key=value*"])


def test_ini_file_secures_every_broker_without_a_mark(project: pytest.Pytester) -> None:
    project.makeini(_INI + "tidemill_security = SASL_PLAINTEXT\n")
    project.makepyfile(
        """
        import pytest

        def protocol(broker):
            return broker.client_options().confluent_kafka["security.protocol"]

        def test_of_the_session(tidemill_session_broker):
            assert protocol(tidemill_session_broker) == "SASL_PLAINTEXT"
            tidemill_session_broker.produce("orders", "x")

        def test_of_its_own(tidemill_broker):
            assert protocol(tidemill_broker) == "SASL_PLAINTEXT"

        @pytest.mark.tidemill(security=None)
        def test_mark_without_security(tidemill_broker):
            with pytest.raises(Exception, match="the broker is not secured"):
                protocol(tidemill_broker)
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=3)


def test_fixture_of_the_project_secures_the_session_broker(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest
        from tidemill.testing import Security

        @pytest.fixture(scope="session")
        def tidemill_security():
            return Security("SASL_PLAINTEXT", users={"alice": "secret"}, acls={"alice": ["write topic:orders"]})
        """
    )
    project.makepyfile(
        """
        from confluent_kafka import Producer

        def outcome(broker, topic):
            errors = []
            producer = Producer(broker.client_options("alice").confluent_kafka)
            producer.produce(topic, "x", on_delivery=lambda error, _message: errors.append(error))
            producer.flush(10)
            return errors[0] and errors[0].name()

        def test_acls_hold(tidemill_session_broker):
            tidemill_session_broker.create_topic("orders")
            tidemill_session_broker.create_topic("others")
            assert outcome(tidemill_session_broker, "orders") is None
            assert outcome(tidemill_session_broker, "others") == "TOPIC_AUTHORIZATION_FAILED"
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_with_xdist(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_apart(tidemill_broker, tidemill_session_broker, number):
            assert tidemill_broker.topics() == []
            tidemill_broker.produce("orders", "x")
            tidemill_session_broker.produce(f"orders-{number}", "x")
            assert len(tidemill_session_broker.records(f"orders-{number}")) == 1
        """
    )
    project.runpytest_subprocess("-p", "xdist", "-n", "2").assert_outcomes(passed=4)


def test_with_asyncio_and_aiokafka(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio
        import pytest
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        @pytest.mark.filterwarnings("default")
        async def test_there_and_back(tidemill_broker):
            producer = AIOKafkaProducer(bootstrap_servers=tidemill_broker.bootstrap, enable_idempotence=True)
            await producer.start()
            tidemill_broker.faults.lose_next_ack("orders")
            await producer.send_and_wait("orders", b"x")
            await producer.stop()
            consumer = AIOKafkaConsumer(
                "orders", bootstrap_servers=tidemill_broker.bootstrap, auto_offset_reset="earliest", group_id="g"
            )
            await consumer.start()
            assert (await consumer.getone()).value == b"x"
            await consumer.stop()
            assert len(tidemill_broker.records("orders")) == 1
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_run_without_fixture_loads_no_broker(tmp_path: Path) -> None:
    """The price of having it installed: two small modules."""
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass")
    script = (
        "import sys, pytest; code = pytest.main(['-q', '-p', 'no:cacheprovider', 'test_nothing.py']); "
        "print(*sorted(name for name in sys.modules if name.startswith('tidemill'))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "tidemill tidemill.testing tidemill.testing.plugin"


def test_the_fixtures_are_listed_with_what_they_are(project: pytest.Pytester) -> None:
    project.makepyfile("")
    result = project.runpytest_subprocess("--fixtures")
    result.stdout.fnmatch_lines(["tidemill_broker*", "*A Kafka broker in this process, for this test alone*"])
    result = project.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.tidemill(*"])
