"""What goes wrong: brokers that are away, logins, rights, forked processes, tasks that are given up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError

from tests.celery.conftest import url_of
from tests.celery.test_kombu import consuming, publish
from tidemill.errors import ConfigError
from tidemill.testing import InProcessBroker, Security

FORKING = Path(__file__).with_name("forking_worker.py")


def test_publishing_to_a_broker_that_is_away_fails_and_succeeds_when_it_is_back(name: str) -> None:
    retry_policy = {"max_retries": 1, "interval_start": 0}
    with (
        InProcessBroker() as broker,
        Connection(url_of(broker), transport_options={"timeout_s": 1}) as connection,
    ):
        queue = Queue(name)
        publish(connection, 1, queue)
        broker.stop()
        with pytest.raises(connection.recoverable_connection_errors):
            publish(connection, 2, queue)
        with pytest.raises(OperationalError):
            publish(connection, 3, queue, retry=True, retry_policy=retry_policy)
        broker.start()
        publish(connection, 4, queue, retry=True)
        with consuming(connection, queue, no_ack=True) as inbox:
            assert {1, 4} <= set(inbox.wait(2))


def test_consumer_goes_on_after_a_restart_and_the_lost_message_comes_again(name: str) -> None:
    with InProcessBroker() as broker, Connection(url_of(broker)) as connection:
        queue = Queue(name)
        publish(connection, "held", queue)
        with consuming(connection, queue) as inbox:
            inbox.wait()
            broker.restart()
            assert inbox.wait(2) == ["held", "held"]
            # The first one's lock is gone; that is a line in the log, no failure.
            for message in inbox.messages:
                message.ack()
            publish(connection, "next", queue)
            assert inbox.wait(3)[-1] == "next"


def test_broadcasts_go_on_after_a_restart(name: str) -> None:
    with InProcessBroker() as broker, Connection(url_of(broker)) as connection:
        queue = Queue(name, Exchange(f"{name}-x", "fanout"), exclusive=True, auto_delete=True)
        with consuming(connection, queue, no_ack=True) as inbox:
            publish(connection, 1, queue)
            inbox.wait()
            broker.restart()
            publish(connection, 2, queue)
            assert inbox.wait(2) == [1, 2]


def test_forked_child_does_not_keep_the_locks_of_its_killed_parent(
    shared: InProcessBroker, connection: Connection, name: str
) -> None:
    """A child that held the parent's socket would keep the session alive until the lock expires after 30 s."""
    publish(connection, "held", Queue(name))
    process = subprocess.Popen(
        [sys.executable, str(FORKING), url_of(shared), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        with consuming(connection, Queue(name)) as inbox:
            assert inbox.wait() == ["held"]
            inbox.messages[0].ack()
        # It was there all the time.
        os.kill(child, 0)


def test_rejected_message_becomes_a_dead_letter(shared: InProcessBroker, name: str) -> None:
    options = {"dead_letters": f"{name}-dlq"}
    with Connection(url_of(shared), transport_options=options) as connection:
        publish(connection, "no", Queue(name))
        with consuming(connection, Queue(name)) as inbox:
            inbox.wait()
            inbox.messages[0].reject()
    (letter,) = shared.wait_until(lambda: shared.records(f"{name}-dlq"), "the dead letter")
    assert b"utf-8" in (letter.value or b"")


def test_login_by_url_and_options(name: str) -> None:
    with InProcessBroker(security=Security("SASL_SSL", users={"ann": "secret"})) as broker:
        options = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "ssl_ca_location": str(broker.client_options("ann").authority),
        }
        url = f"tidemill://ann:secret@{broker.bootstrap}//"
        with Connection(url, transport_options=options) as connection:
            publish(connection, "hello", Queue(name))
            with consuming(connection, Queue(name), no_ack=True) as inbox:
                assert inbox.wait() == ["hello"]
        wrong = Connection(f"tidemill://ann:guessed@{broker.bootstrap}//", transport_options=options)
        with pytest.raises(wrong.connection_errors) as refused:
            wrong.connect()
        assert not isinstance(refused.value, wrong.recoverable_connection_errors)
        assert "guessed" not in str(refused.value)


def test_consumer_without_the_right_to_read_gets_the_reason(name: str) -> None:
    rules = [f"write topic:{name}", f"create topic:{name}"]
    security = Security("SASL_PLAINTEXT", users={"ann": "secret"}, acls={"ann": rules})
    with InProcessBroker(security=security) as broker:
        options = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-512",
            "priority_steps": [0],
        }
        url = f"tidemill://ann:secret@{broker.bootstrap}//"
        with Connection(url, transport_options=options) as connection:
            publish(connection, "hello", Queue(name))
            with (
                pytest.raises(connection.recoverable_connection_errors, match="AUTHORIZATION_FAILED"),
                consuming(connection, Queue(name)) as inbox,
            ):
                inbox.wait()


def test_pool_that_is_not_supported_is_refused_at_once(
    shared: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kombu.utils.compat._environment", "eventlet")
    with (
        Connection(url_of(shared)) as connection,
        pytest.raises(ConfigError, match="--pool gevent") as refused,
    ):
        connection.connect()
    assert not isinstance(refused.value, connection.connection_errors), "Celery would try again for ever"
