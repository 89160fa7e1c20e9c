"""The files of `tidemill cluster start`: written once, kept, and refused when they are not what was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.cli.failures import CommandError
from tidemill.cli.serving.local_cluster import prepare
from tidemill.config import BrokerConfig, load_broker_config, parse_properties
from tidemill.log.files import DiskFiles


def config_of(path: Path) -> BrokerConfig:
    config, warnings = load_broker_config(parse_properties(path.read_text(encoding="utf-8")))
    assert warnings == []
    return config


def test_three_nodes_know_each_other(tmp_path: Path) -> None:
    nodes = prepare(tmp_path / "c", None, 19092)
    configs = [config_of(node.config_path) for node in nodes]
    assert [config.node_id for config in configs] == [1, 2, 3]
    assert [config.network.listeners[0].port for config in configs] == [19092, 19093, 19094]
    assert [config.network.controller_listeners[0].port for config in configs] == [19095, 19096, 19097]
    for config in configs:
        assert [voter.port for voter in config.quorum.voters] == [19095, 19096, 19097]
        assert config.topics.default_replication_factor == 3
        assert config.topics.defaults.min_insync_replicas == 2
        assert Path(config.storage.log_dirs[0]).is_absolute()


def test_folders_are_open_to_owner_and_group_only(tmp_path: Path) -> None:
    (node,) = prepare(tmp_path / "above" / "c", 1, 0)
    DiskFiles().make_folder(str(tmp_path / "data" / "orders-0"))
    for folder in (tmp_path / "above" / "c", node.config_path.parent, tmp_path / "data" / "orders-0"):
        assert folder.stat().st_mode & 0o777 == 0o750 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_cluster_of_one_node_has_one_replica(tmp_path: Path) -> None:
    (node,) = prepare(tmp_path, 1, 0)
    config = config_of(node.config_path)
    assert config.topics.default_replication_factor == 1
    assert config.topics.defaults.min_insync_replicas == 1
    assert config.offsets_topic.replication_factor == 1


def test_the_kernel_chooses_ports_that_differ(tmp_path: Path) -> None:
    nodes = prepare(tmp_path, 3, 0)
    ports = [
        listener.port
        for node in nodes
        for listener in (
            *config_of(node.config_path).network.listeners,
            *config_of(node.config_path).network.controller_listeners,
        )
    ]
    assert len(set(ports)) == 6
    assert 0 not in ports


def test_a_second_start_takes_the_files_as_they_are(tmp_path: Path) -> None:
    first = prepare(tmp_path, 2, 0)
    edited = first[0].config_path.read_text(encoding="utf-8") + "num.partitions=7\n"
    first[0].config_path.write_text(edited, encoding="utf-8")
    assert prepare(tmp_path, None, None) == first
    assert prepare(tmp_path, 2, first[0].port) == first
    assert config_of(first[0].config_path).topics.num_partitions == 7


def test_another_number_of_brokers_or_another_port_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path, 2, 19092)
    with pytest.raises(CommandError, match="holds a cluster of 2 brokers, not 3; leave --brokers out"):
        prepare(tmp_path, 3, None)
    with pytest.raises(CommandError, match="begins at port 19092, not 29092"):
        prepare(tmp_path, None, 29092)


def test_bad_files_and_ports_are_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--base-port 65535"):
        prepare(tmp_path / "high", 3, 65535)
    (node,) = prepare(tmp_path / "c", 1, 0)
    node.config_path.write_text("num.partitions=none\n", encoding="utf-8")
    with pytest.raises(CommandError, match=r"server\.properties: Invalid value none"):
        prepare(tmp_path / "c", None, None)
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot write to"):
        prepare(tmp_path / "file" / "below", 1, 0)
