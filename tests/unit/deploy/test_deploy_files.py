"""The examples in deploy/ are read as their tools read them, and every configuration in them is one that starts."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.unit.deploy.yaml_subset import parse
from tidemill.config import BrokerConfig, load_broker_config, parse_properties

DEPLOY = Path(__file__).parents[3] / "deploy"


def loaded(text: str, settings: list[str] | None = None) -> BrokerConfig:
    properties = parse_properties(text) | dict(pair.split("=", 1) for pair in settings or [])
    config, warnings = load_broker_config(properties)
    assert warnings == []
    return config


def settings_of(words: list[str]) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == "--set"]


def check_cluster(configs: list[BrokerConfig]) -> None:
    """Nodes of one cluster: other ids, the same voters, all of them there, and addresses that differ."""
    ids = [config.node_id for config in configs]
    assert len(set(ids)) == 3
    for config in configs:
        assert [voter.id for voter in config.quorum.voters] == ids
        assert config.topics.default_replication_factor == 3
        assert config.topics.defaults.min_insync_replicas == 2
        own = next(voter for voter in config.quorum.voters if voter.id == config.node_id)
        (advertised,) = config.network.advertised_controller_listeners
        assert (own.host, own.port) == (advertised.host, advertised.port)
    told = [listener for config in configs for listener in config.network.advertised_listeners]
    assert len({(listener.host, listener.port) for listener in told}) == len(told)


def test_one_node() -> None:
    config = loaded((DEPLOY / "server.properties").read_text())
    assert config.is_broker
    assert config.is_controller
    assert [voter.id for voter in config.quorum.voters] == [config.node_id]


def test_three_nodes() -> None:
    paths = sorted((DEPLOY / "three-nodes").glob("*.properties"))
    check_cluster([loaded(path.read_text()) for path in paths])


def test_compose() -> None:
    (document,) = parse((DEPLOY / "docker-compose.yml").read_text())
    common = (DEPLOY / "compose.properties").read_text()
    services: dict[str, Any] = document["services"]
    configs = [loaded(common, settings_of(service["command"])) for service in services.values()]
    check_cluster(configs)
    for (name, service), config in zip(services.items(), configs, strict=True):
        hosts = {listener.name: listener for listener in config.network.advertised_listeners}
        assert hosts["PLAINTEXT"].host == service["hostname"] == name
        # The port that is published on the host is the one that is advertised to clients.
        published, inner = service["ports"][0].split(":")
        assert int(published) == hosts["EXTERNAL"].port
        assert int(inner) == {each.name: each.port for each in config.network.listeners}["EXTERNAL"]
        assert f"data-{config.node_id}:{config.storage.log_dirs[0]}" in service["volumes"]
        assert f"data-{config.node_id}" in document["volumes"]


def test_kubernetes() -> None:
    documents = {each["kind"]: each for each in parse((DEPLOY / "kubernetes.yaml").read_text())}
    assert documents.keys() == {"Service", "ConfigMap", "PodDisruptionBudget", "StatefulSet"}
    stateful_set = documents["StatefulSet"]["spec"]
    (container,) = stateful_set["template"]["spec"]["containers"]
    text = documents["ConfigMap"]["data"]["server.properties"]
    configs = [
        _pod_config(text, container["args"][0], ordinal) for ordinal in range(int(stateful_set["replicas"]))
    ]
    check_cluster(configs)
    service = documents["Service"]
    for config in configs:
        host = config.network.advertised_listeners[0].host
        assert host == f"tidemill-{config.node_id}.{service['metadata']['name']}"
        assert any(
            config.storage.log_dirs[0].startswith(mount["mountPath"]) for mount in container["volumeMounts"]
        )
    labels = stateful_set["template"]["metadata"]["labels"]
    assert stateful_set["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == labels
    assert service["spec"]["clusterIP"] == "None"
    assert documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    ports = {int(port["containerPort"]) for port in container["ports"]}
    network = configs[0].network
    assert ports == {each.port for each in (*network.listeners, *network.controller_listeners)}


def _pod_config(text: str, script: str, ordinal: int) -> BrokerConfig:
    """As the shell of the pod would see it."""
    hostname = f"tidemill-{ordinal}"
    script = script.replace("$(NODE_NAME)", "node-a").replace("${HOSTNAME##*-}", str(ordinal))
    script = script.replace("${HOSTNAME}", hostname)
    assert "$" not in script
    return loaded(text, settings_of(shlex.split(script)))


def test_systemd_unit() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((DEPLOY / "tidemill.service").read_text())
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[1:3] == ["serve", "--config"]
    # Everything but the state directory is read-only for the service.
    config = loaded((DEPLOY / "server.properties").read_text())
    assert service["ProtectSystem"] == "strict"
    assert config.storage.log_dirs == (f"/var/lib/{service['StateDirectory']}",)
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_dockerfile_runs_a_command_that_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["python:3.12-slim"]
    assert re.search(r'^ENTRYPOINT \["tidemill"\]$', text, re.MULTILINE)


def test_the_readme_names_every_file() -> None:
    readme = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        if path.name != "README.md":
            assert f"`{path.name}" in readme, path.name


@pytest.mark.parametrize("text", ["a: [1]", "a: b: c", "a:\n\tb: c", "a: 1\na: 2", "just text"])
def test_the_reader_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(AssertionError):
        parse(text)
