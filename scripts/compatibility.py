"""Writes docs/compatibility.md: which APIs are served, in which versions, and where Kafka behaves differently.

The first part comes from the dispatch table, the others from the differences that `make diff-kafka` and `make diff-acls`
accept. A test
compares the file with what this would write, so that it is never stale.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import TABLE, Scope
from tidemill.protocol.api import API_NAMES

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "compatibility.md"
ACCEPTED = ROOT / "bench" / "diff" / "accepted.toml"
ACCEPTED_RIGHTS = ROOT / "bench" / "diff" / "acls" / "accepted.toml"

assert handlers  # importing them fills the table


def render() -> str:
    return "\n".join([*_served(), *_not_served(), *_differences(), *_rights()]) + "\n"


_AT = {Scope.BROKER: "brokers", Scope.CONTROLLER: "controllers", Scope.BOTH: "both"}


def _served() -> list[str]:
    lines = [
        "# Compatibility with Apache Kafka",
        "",
        "Written by `make docs` from the dispatch table and from the differences that `make diff-kafka` and "
        "`make diff-acls` accept.",
        "",
        "## APIs served",
        "",
        '"At" names the listeners: broker, controller or both. A node with both roles may serve both at one listener.',
        "",
        "| key | API | versions | at | missing |",
        "|---:|---|---|---|---|",
    ]
    for key, api in sorted(TABLE.items()):
        versions = f"{api.advertised.min}–{api.advertised.max}"
        if api.advertised != api.versions:
            versions += f" (served: {api.versions.min}–{api.versions.max})"
        lines.append(f"| {key} | {api.name} | {versions} | {_AT[api.scope]} | {' '.join(api.gaps)} |")
    return lines


def _not_served() -> list[str]:
    missing = [name for key, name in sorted(API_NAMES.items()) if key not in TABLE]
    return [
        "",
        "## APIs not served",
        "",
        "A request for one of these is answered with UNSUPPORTED_VERSION, and ApiVersions does not list it:",
        f"{', '.join(missing)}.",
    ]


def _differences() -> list[str]:
    accepted = tomllib.loads(ACCEPTED.read_text()).get("accepted", []) if ACCEPTED.exists() else []
    lines = ["", "## Where the answers differ", ""]
    if not accepted:
        return [*lines, "No difference is known."]
    lines += ["| API | cases | field | why |", "|---|---|---|---|"]
    for entry in accepted:
        cells = [_cell(entry.get(name, "all")) for name in ("api", "cases", "field", "reason")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rights() -> list[str]:
    lines = [
        "",
        "## Where rights differ",
        "",
        "`make diff-acls` sends both brokers, each with its authorizer, the same requests under the same random ACLs. "
        "Rights are the same except for the rows below. Hosts as ranges of addresses, which are new "
        "in Kafka 4.4, are not compared.",
        "",
        "| API | field | why |",
        "|---|---|---|",
    ]
    for entry in tomllib.loads(ACCEPTED_RIGHTS.read_text())["accepted"]:
        lines.append(
            f"| {' | '.join(_cell(entry.get(name, 'all')) for name in ('api', 'field', 'reason'))} |"
        )
    return lines


def _cell(value: object) -> str:
    text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


def main() -> None:
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(render())


if __name__ == "__main__":
    main()
