"""ApiVersions, and what a broker makes of API keys and versions that it does not know."""

from __future__ import annotations

from typing import Any

from bench.diff.connection import Silence
from bench.diff.messages import KEYS, api_name, decode
from bench.diff.script import Script, case

# The APIs whose ranges must match; grows with what Tidemill serves.
SERVED = (
    "produce",
    "fetch",
    "list_offsets",
    "metadata",
    "api_versions",
    "create_topics",
    "delete_topics",
    "delete_records",
    "init_producer_id",
    "offset_for_leader_epoch",
    "describe_configs",
    "alter_configs",
    "describe_log_dirs",
    "create_partitions",
    "incremental_alter_configs",
    "describe_cluster",
    "describe_topic_partitions",
    "delete_groups",
    "describe_acls",
    "create_acls",
    "delete_acls",
    "alter_replica_log_dirs",
    "update_features",
    "describe_client_quotas",
    "describe_user_scram_credentials",
    "list_config_resources",
)


def _served(tree: dict[str, Any]) -> dict[str, Any]:
    if not tree["api_keys"]:
        return tree
    names = {KEYS[api]: api_name(api) for api in SERVED}
    ranges = {
        names[entry["api_key"]]: f"{entry['min_version']}-{entry['max_version']}"
        for entry in tree["api_keys"]
        if entry["api_key"] in names
    }
    return {**tree, "api_keys": {name: ranges.get(name, "not advertised") for name in names.values()}}


@case("api_versions")
def good(s: Script) -> None:
    s.ask(
        "",
        {"client_software_name": "diff-tool", "client_software_version": "1.0"},
        keep=_served,
    )


@case("api_versions", since=3)
def software_name(s: Script) -> None:
    for label, name, number in (
        ("empty name", "", "1.0"),
        ("empty version", "diff-tool", ""),
        ("a space", "diff tool", "1.0"),
        ("starts with a dot", ".diff", "1.0"),
        ("ends with a dash", "diff-", "1.0"),
        ("umlaut", "müller", "1.0"),
    ):
        s.ask(label, {"client_software_name": name, "client_software_version": number}, keep=_served)


@case("api_versions", since=4)
def too_new(s: Script) -> None:
    """The answer to a version above the highest has the layout of v0 and names the range of ApiVersions."""
    body = b"\x05diff\x041.0\x00"
    for version in (99, s.version + 1, -1):
        reply = s.tell_raw(KEYS["api_versions"], version, body, header_version=2)
        tree = reply.value if isinstance(reply, Silence) else decode("api_versions", 0, reply)
        s.note(f"version {version}", tree, f"version {version}")


@case("api_versions", since=4)
def bad_frames(s: Script) -> None:
    key = KEYS["api_versions"]
    s.ask_raw("v0 with bytes left over", key, 0, b"left over")
    s.ask_raw("v3 cut short", key, 3, b"\x05di", header_version=2)
    s.ask_raw("v3 without a body", key, 3, b"", header_version=2)
    s.ask_raw("unknown tagged field", key, 3, b"\x05diff\x041.0\x01\x63\x02hi", header_version=2)
    s.ask_raw("unknown api key 999", 999, 0, b"")
    s.ask_raw("api key -1", -1, 0, b"")
    s.ask_raw("api key of controllers only (BrokerRegistration)", 62, 0, b"", header_version=2)
    s.ask_raw("removed api key (LeaderAndIsr)", 4, 7, b"", header_version=2)


@case("metadata", only_ends=True)
def unsupported_versions(s: Script) -> None:
    """Versions beyond the range of every other API."""
    for api in SERVED:
        if api in ("api_versions", "produce") or s.version != s.shared["metadata"][-1]:
            continue
        s.ask_raw(f"{api_name(api)} one above the highest", KEYS[api], s.shared[api][-1] + 1, b"\x00" * 40)


@case("metadata", only_ends=True)
def bad_bodies(s: Script) -> None:
    key = KEYS["metadata"]
    header_version = 2 if s.version >= 9 else 1
    s.ask_raw("no body", key, s.version, b"", header_version=header_version)
    s.ask_raw("negative array length", key, s.version, b"\xff\xff\xff\xfe", header_version=header_version)
    s.ask_raw("a billion topics", key, s.version, b"\x3b\x9a\xca\x00", header_version=header_version)
