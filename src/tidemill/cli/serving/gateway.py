"""`tidemill gateway`: runs the REST gateway and the web console of a cluster until a signal stops it.

The address is bound before anything else is loaded, so that a port in use is reported at once. Standard output gets
the line `Console at http://HOST:PORT/` as soon as the gateway serves; the log goes to standard error. With
--until-stdin-closes, which `tidemill serve --gateway` uses, the gateway reads one line of properties from its standard
input, and ends when that closes: then the parent process has ended.

With SASL in --command-config, callers log in with users of the cluster, and act as themselves. --auth and --shared-login
make all of them act as the user of that file.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from tidemill.claims.large_payloads import THRESHOLD_BYTES, LargePayloads
from tidemill.cli.failures import CommandError
from tidemill.cli.options import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    add_examples,
    add_store_alias,
    default_bootstrap,
    positive,
    positive_seconds,
    properties_file,
)
from tidemill.cli.serving.addresses import bound, dialled
from tidemill.cli.serving.gateway_access import has_login
from tidemill.cli.serving.gateway_child import FROM_PARENT, INSTALL_HINT, missing_packages
from tidemill.cli.serving.http_listeners import HttpListener, check_exposure, http_listener
from tidemill.cli.serving.process import add_log_arguments, configure_logging, raise_file_limit
from tidemill.client.connections.connection import Address

if TYPE_CHECKING:
    import uvicorn

    from tidemill.gateway.settings import Settings

logger = logging.getLogger(__name__)

_DEFAULT_LISTEN = "127.0.0.1:8080"
_LISTEN_OPTION = "--listen"
_BACKLOG = 1024
# The time that requests in flight get at shutdown. When the broker has ended, it is shorter.
_DRAIN_S = 10.0
_CHILD_DRAIN_S = 2.0
# A gateway without a parent whose event loop hangs ends itself after this time.
_ORPHAN_S_MAX = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        default=default_bootstrap(),
        help=f"a broker of the cluster, or several with commas (default ${BOOTSTRAP_VARIABLE} or {DEFAULT_BOOTSTRAP})",
    )
    parser.add_argument(
        _LISTEN_OPTION,
        metavar="HOST:PORT",
        default=_DEFAULT_LISTEN,
        help=f"address to listen on, as HOST:PORT or https://HOST:PORT; port 0 lets the kernel choose "
        f"(default {_DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--tls-config",
        metavar="FILE",
        type=Path,
        help="properties for https: ssl.keystore.location with certificate and key, as brokers have them",
    )
    parser.add_argument(
        "--status-url",
        metavar="http://HOST:PORT",
        action="append",
        default=[],
        help="a broker's status listener (its --status), for throughput and rebalances; repeatable",
    )
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        type=Path,
        help="properties of Kafka's clients for the connection to the brokers: security.protocol, ssl.*, sasl.*; "
        "with SASL, callers log in as users of the cluster",
    )
    parser.add_argument(
        "--shared-login",
        action="store_true",
        help="callers need no log-in: all of them act as the user of --command-config",
    )
    parser.add_argument(
        "--auth",
        metavar="MODULE:FUNCTION",
        help="a function, installed or in a file of this folder, that authenticates every request "
        "(default: no authentication)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond this machine without a log-in, or without TLS for one",
    )
    parser.add_argument(
        "--allow-origin",
        metavar="URL",
        action="append",
        default=[],
        help="an origin whose pages may use the API from a browser, such as https://app.example.com; repeatable",
    )
    parser.add_argument(
        "--trust-forwarded",
        action="store_true",
        help="the gateway is behind a proxy: trust its X-Forwarded-Proto, -Host and -Prefix",
    )
    _add_large_payloads(parser)
    _add_limits(parser)
    parser.add_argument(FROM_PARENT, action="store_true", help=argparse.SUPPRESS)
    add_log_arguments(parser)
    parser.set_defaults(program=parser.prog)
    add_examples(
        parser,
        "tidemill gateway\n"
        "tidemill gateway --bootstrap broker-1:9092 --command-config client.properties --listen https://0.0.0.0:8443 "
        "--tls-config gateway.properties\n"
        "tidemill gateway --bootstrap broker-1:9092,broker-2:9092 --auth my_auth:check --status-url http://broker-1:9404",
    )


def _add_large_payloads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--large-payloads",
        metavar="STORE",
        help="a folder, or a URL such as s3://bucket/prefix: values above --large-payload-bytes go there, and come back",
    )
    parser.add_argument(
        "--large-payload-bytes",
        metavar="BYTES",
        type=positive,
        default=THRESHOLD_BYTES,
        help=f"values of more bytes go to the --large-payloads (default {THRESHOLD_BYTES})",
    )
    add_store_alias(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-body-bytes", metavar="N", type=positive, help="of one request (default 16 MiB)"
    )
    limits.add_argument(
        "--max-record-bytes", metavar="N", type=positive, help="of one record (default 1 MiB)"
    )
    limits.add_argument(
        "--max-records", metavar="N", type=positive, help="of one request that is no stream (default 50000)"
    )
    limits.add_argument(
        "--max-requests", metavar="N", type=positive, help="under way at the same time (default 1000)"
    )
    limits.add_argument(
        "--max-instances", metavar="N", type=positive, help="consumer instances of REST v2 (default 100)"
    )
    limits.add_argument(
        "--instance-timeout",
        metavar="SECONDS",
        type=positive_seconds,
        help="how long an idle consumer instance is kept (default 300)",
    )
    limits.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_seconds,
        help="how long to wait for a response of the cluster (default 10)",
    )


def run(arguments: argparse.Namespace) -> int:
    if missing := missing_packages():
        raise CommandError(f"the gateway needs {', '.join(missing)}: {INSTALL_HINT}")
    # The error names the option that the user gave: that of `tidemill serve`, if it started this process.
    option = "--gateway" if arguments.until_stdin_closes else _LISTEN_OPTION
    given = _given(arguments)
    listener = http_listener(option, arguments.listen, given.tls, "")
    with bound(listener.address, option, _BACKLOG) as listening:
        configure_logging(arguments.log_level, arguments.log_format)
        if arguments.log_level != "debug":
            # uvicorn repeats the messages about start and stop.
            logging.getLogger("uvicorn").setLevel(logging.WARNING)
        settings = _settings(arguments, listener, listening, given.client)
        if not arguments.insecure:
            check_exposure(
                listener,
                option=option,
                has_login=settings.login is not None,
                has_auth=settings.authenticate is not None,
                is_proxied=settings.trusts_forwarded,
            )
        return _serve(settings, listening, arguments.until_stdin_closes)


class _Given(NamedTuple):
    """Properties with secrets among them: of the connections to the brokers, and of this listener's TLS."""

    client: Mapping[str, str]
    tls: Mapping[str, str]


def _given(arguments: argparse.Namespace) -> _Given:
    if not arguments.until_stdin_closes:
        return _Given(properties_file(arguments.command_config), properties_file(arguments.tls_config))
    # Not by sys.stdin, which would read ahead of the thread that waits for the end.
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    found = json.loads(line or b"{}")
    return _Given(found.get("client", {}), found.get("tls", {}))


def _settings(
    arguments: argparse.Namespace, listener: HttpListener, listening: socket.socket, client: Mapping[str, str]
) -> Settings:
    # Imported here because the packages of the extra may be missing.
    from tidemill.gateway.settings import Limits, LoginLimits, Settings, load_authenticate

    given_limits = {
        "body_bytes_max": arguments.max_body_bytes,
        "record_bytes_max": arguments.max_record_bytes,
        "request_records_max": arguments.max_records,
        "requests_max": arguments.max_requests,
        "instances_max": arguments.max_instances,
        "instance_idle_s": arguments.instance_timeout,
    }
    if arguments.auth:
        # A console script searches modules beside itself only, but the function may be in a file of the current
        # folder.
        sys.path.insert(0, os.getcwd())
    limits = Limits(**{name: value for name, value in given_limits.items() if value is not None})
    host, port = listening.getsockname()[:2]
    settings = Settings(
        bootstrap=arguments.bootstrap,
        listen_host=host,
        listen_port=port,
        client_options=client,
        tls=listener.tls,
        login=None if arguments.auth or arguments.shared_login or not has_login(client) else LoginLimits(),
        status_urls=tuple(arguments.status_url),
        authenticate=load_authenticate(arguments.auth) if arguments.auth else None,
        allow_origins=tuple(arguments.allow_origin),
        trusts_forwarded=arguments.trust_forwarded,
        drain_s=_CHILD_DRAIN_S if arguments.until_stdin_closes else _DRAIN_S,
        limits=limits,
        large_payloads=_large_payloads(arguments, limits.body_bytes_max),
    )
    return settings if arguments.timeout is None else replace(settings, timeout_s=arguments.timeout)


def _large_payloads(arguments: argparse.Namespace, limit_bytes: int) -> LargePayloads | None:
    """Returns the store of large payloads. An answer may hold as much as a request may bring."""
    if arguments.large_payloads is None:
        return None
    return LargePayloads(
        arguments.large_payloads,
        threshold_bytes=arguments.large_payload_bytes,
        limit_bytes=limit_bytes,
        aliases=arguments.store_alias,
    )


def _serve(settings: Settings, listening: socket.socket, ends_with_stdin: bool) -> int:
    import uvloop

    from tidemill.gateway.app import Server, create_app, uvicorn_config

    class AnnouncedServer(Server):
        """A uvicorn server that prints its address once it serves."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                address = Address(settings.listen_host, settings.listen_port)
                _announce("http" if settings.tls is None else "https", address)

    if settings.authenticate is None and settings.login is None and not settings.is_local:
        logger.warning(
            "the gateway listens on %s without a log-in: every client can read and change everything",
            settings.listen_host,
        )
    raise_file_limit()
    server = AnnouncedServer(uvicorn_config(create_app(settings), settings))
    # uvicorn stops on a signal and raises it again for the previous handlers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _pass)
    if ends_with_stdin:
        threading.Thread(target=_end_with_stdin, args=(server,), name="stdin", daemon=True).start()
    uvloop.run(server.serve(sockets=[listening]))
    return 0 if server.started else 1


def _announce(scheme: str, address: Address) -> None:
    sys.stdout.write(f"Console at {scheme}://{dialled(address)}/\n")
    sys.stdout.flush()


def _pass(_number: int, _frame: FrameType | None) -> None:
    return


def _end_with_stdin(server: uvicorn.Server) -> None:
    """Stop the server when standard input closes. Runs in a thread of its own, so it works when the event loop
    hangs."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    server.should_exit = True
    time.sleep(_ORPHAN_S_MAX)
    os._exit(1)
