"""`tidemill security`: makes the files of a cluster that is safe on a network, and renews its certificates.

`init` writes everything that `layout` lists. Files with secrets are readable by their owner only. Nothing is overwritten.
`renew` and `new-ca` replace certificates in place; brokers read them again without a restart.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
from pathlib import Path
from typing import Any

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import Run, add_examples, add_verbs, positive, print_json, properties_file
from tidemill.cli.security import layout
from tidemill.cli.security.layout import ADMIN, APP, NodeAddress, Passwords
from tidemill.client.cluster import parse_bootstrap
from tidemill.errors import ConfigError

_SECRET, _PUBLIC, _FOLDER = 0o600, 0o644, 0o700
_PASSWORD_BYTES = 24
_CA_DAYS, _BROKER_DAYS = 3650, 397


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    init = _verb(
        verbs,
        "init",
        _init,
        "make a CA, broker certificates, passwords and the configuration of a secured cluster",
        "tidemill security init safe\n"
        "tidemill security init safe --nodes 3 --host mq1.example.com --host mq2.example.com --host mq3.example.com",
    )
    init.add_argument("--nodes", metavar="N", type=positive, default=1, help="how many nodes (default 1)")
    init.add_argument(
        "--host",
        metavar="NAME[:PORT]",
        action="append",
        help="where clients reach a node: one for each, or one for all (default 127.0.0.1:9092)",
    )
    init.add_argument(
        "--path-on-nodes",
        metavar="PATH",
        type=Path,
        help="where each node finds its folder, as /etc/tidemill; files are named by it (default: FOLDER/node-N)",
    )
    renew = _verb(
        verbs,
        "renew",
        _renew,
        "sign new certificates for the brokers",
        "tidemill security renew safe\ntidemill security renew safe --days 90",
    )
    for each in (init, renew):
        each.add_argument(
            "--days",
            metavar="N",
            type=positive,
            default=_BROKER_DAYS,
            help=f"how long broker certificates are valid (default {_BROKER_DAYS})",
        )
    _verb(
        verbs,
        "new-ca",
        _new_authority,
        "make a new CA, trusted beside the old one; `renew` then signs with it",
        "tidemill security new-ca safe",
    )


def _verb(verbs: Any, name: str, run_verb: Run, summary: str, examples: str) -> argparse.ArgumentParser:
    """A verb that works on files and connects to nothing."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_examples(parser, examples)
    parser.set_defaults(run_verb=run_verb, program=parser.prog)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the files are")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _init(arguments: argparse.Namespace) -> int:
    # The package that makes certificates is an extra.
    from tidemill.tls import certificates

    folder = arguments.folder.absolute()
    nodes = _addresses(arguments)
    if folder.exists() and any(folder.iterdir()):
        raise CommandError(f"{folder} is not empty; name a new folder, or remove it first")
    passwords = Passwords(*(secrets.token_urlsafe(_PASSWORD_BYTES) for _ in Passwords._fields))
    authority = certificates.new_authority(_CA_DAYS)
    _write(folder / "ca" / "ca.pem", authority.certificate, _PUBLIC)
    _write(folder / "ca" / "ca.key", authority.key, _SECRET)
    for node in nodes:
        place = folder / node.name
        path = arguments.path_on_nodes or place
        pem = certificates.broker_certificate(authority, node.name, node.certificate_hosts(), arguments.days)
        _write(place / "node.pem", pem, _SECRET)
        _write(place / "ca.pem", authority.certificate, _PUBLIC)
        properties = layout.server_properties(node, nodes, path, passwords)
        _write(place / "server.properties", layout.properties_text(properties), _SECRET)
    clients = folder / "clients"
    _write(clients / "ca.pem", authority.certificate, _PUBLIC)
    for user, password in ((ADMIN, passwords.admin), (APP, passwords.app)):
        properties = layout.client_properties(nodes, user, password, clients / "ca.pem")
        _write(clients / f"{user}.properties", layout.properties_text(properties), _SECRET)
    _write(clients / f"{APP}.password", passwords.app + "\n", _SECRET)
    _report(arguments, folder, nodes)
    return 0


def _addresses(arguments: argparse.Namespace) -> list[NodeAddress]:
    hosts = arguments.host or ["127.0.0.1"]
    if len(hosts) not in (1, arguments.nodes):
        raise UsageError(f"give --host once, or once for each of the {arguments.nodes} nodes")
    try:
        parsed = [(host, port) for text in hosts for host, port in parse_bootstrap(text)]
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if len(parsed) != len(hosts):
        raise UsageError("--host takes one NAME[:PORT]; repeat it for more")
    return layout.node_addresses(parsed, arguments.nodes)


def _write(path: Path, text: str, mode: int) -> None:
    """Replace the file as a whole: a broker that reads it meanwhile sees the old one or the new one."""
    path.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None


def _report(arguments: argparse.Namespace, folder: Path, nodes: list[NodeAddress]) -> None:
    address = layout.bootstrap(nodes)
    admin = shlex.join(
        ["--bootstrap", address, "--command-config", str(folder / "clients" / f"{ADMIN}.properties")]
    )
    password = shlex.quote(str(folder / "clients" / f"{APP}.password"))
    starts = [
        f"tidemill serve --config {shlex.quote(str(folder / each.name / 'server.properties'))}"
        for each in nodes
    ]
    verbs = [
        f"tidemill users add {APP} --password-file {password} {admin}",
        f"tidemill acls add --principal User:{APP} --producer --topic {APP}. --pattern prefixed {admin}",
        f"tidemill acls add --principal User:{APP} --consumer --topic {APP}. --group {APP}. --pattern prefixed {admin}",
    ]
    if arguments.json:
        print_json({"folder": str(folder), "bootstrap": address, "start": starts, "next": verbs})
        return
    print(
        f"made a CA, {len(nodes)} broker certificate(s), the users admin and app, and their files in {folder}\n"
    )
    print("Move ca/ca.key to a place that no broker reaches: it can make certificates of this cluster.")
    print("Start each node" + (", with its folder copied to its machine:" if len(nodes) > 1 else ":"))
    print("".join(f"  {line}\n" for line in starts))
    print("Then add the first user, and give it the topics and groups whose names begin with app.:")
    print("".join(f"  {line}\n" for line in verbs))
    print(f"Clients of that user take {folder / 'clients' / f'{APP}.properties'}")


def _renew(arguments: argparse.Namespace) -> int:
    from tidemill.tls import certificates

    trusted = _read(arguments.folder / "ca" / "ca.pem")
    newest = _certificates(trusted)[0]
    authority = certificates.Authority(newest, _read(arguments.folder / "ca" / "ca.key"))
    places = _node_folders(arguments.folder)
    for place in places:
        (address, *_) = properties_file(place / "server.properties")["advertised.listeners"].split(",")
        ((host, port),) = parse_bootstrap(address.partition("://")[2])
        hosts = NodeAddress(0, host, port).certificate_hosts()
        pem = certificates.broker_certificate(authority, place.name, hosts, arguments.days)
        _write(place / "node.pem", pem, _SECRET)
        _write(place / "ca.pem", trusted, _PUBLIC)
    _print_written(arguments, [place / "node.pem" for place in places])
    return 0


def _new_authority(arguments: argparse.Namespace) -> int:
    from tidemill.tls import certificates

    authority = certificates.new_authority(_CA_DAYS)
    trusted = authority.certificate + _read(arguments.folder / "ca" / "ca.pem")
    places = [arguments.folder / "ca", arguments.folder / "clients", *_node_folders(arguments.folder)]
    for place in places:
        _write(place / "ca.pem", trusted, _PUBLIC)
    _write(arguments.folder / "ca" / "ca.key", authority.key, _SECRET)
    _print_written(arguments, [place / "ca.pem" for place in places])
    return 0


def _print_written(arguments: argparse.Namespace, written: list[Path]) -> None:
    if arguments.json:
        print_json([str(path) for path in written])
        return
    for path in written:
        print(f"wrote {path}")


def _node_folders(folder: Path) -> list[Path]:
    found = sorted(path.parent for path in folder.glob("node-*/server.properties"))
    if not found:
        raise CommandError(f"{folder} has no node-N/server.properties; `tidemill security init` makes them")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error.strerror}; bring the CA's files back to that place first"
        ) from None


def _certificates(text: str) -> list[str]:
    end = "-----END CERTIFICATE-----\n"
    return [part + end for part in text.split(end) if part.strip()]
