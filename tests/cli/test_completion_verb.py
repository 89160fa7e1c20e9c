"""`tidemill completion`, in the shells that people have."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.brokers import RunningBroker, command, readable
from tests.cli.conftest import LIMIT_S, Run
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
# Where the console script of this environment is.
BIN = str(Path(sys.executable).parent)

# What bash does at Tab: it calls the function with the command, the current word and the one before.
ASK_BASH = """
source completion.bash
[[ $(complete -p tidemill) == "complete -F _tidemill tidemill" ]] || exit 3
COMP_LINE=$1 COMP_POINT=${#1}
_tidemill tidemill "${1##* }" "" 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""

Ask = Callable[[str], list[str]]


@pytest.fixture
def bash(target: RunningBroker, tmp_path: Path) -> Ask:
    """Returns the completions of bash for a line with the cursor at its end."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "TIDEMILL_BOOTSTRAP": target.bootstrap,
    }

    with (tmp_path / "completion.bash").open("w") as script:
        subprocess.run([*command(), "completion", "bash"], stdout=script, timeout=LIMIT_S, check=True)

    def ask(line: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", ASK_BASH, "bash", line],
            capture_output=True,
            timeout=LIMIT_S,
            env=environment,
            cwd=tmp_path,
            check=True,
            text=True,
        )
        return done.stdout.split()

    return ask


@needs_bash
def test_bash_completes_commands_verbs_and_options(bash: Ask) -> None:
    assert bash("tidemill top") == ["topics"]
    assert bash("tidemill topics de") == ["delete", "delete-records", "describe"]
    assert bash("tidemill topics create --par") == ["--partitions"]
    assert bash("tidemill produce orders --compression z") == ["zstd"]
    # bash begins a new word behind the equals sign.
    assert bash("tidemill produce orders --compression=z") == ["zstd"]


@needs_bash
def test_bash_completes_names_of_the_cluster(bash: Ask, orders: str, cluster: Cluster) -> None:
    Admin(cluster).create_topic(f"{orders}-more")
    both = [orders, f"{orders}-more"]
    assert bash(f"tidemill consume {orders}") == both
    assert bash(f"tidemill consume --partition 0 {orders}-") == both[1:]
    assert bash(f"tidemill configs describe topic {orders}-") == both[1:]
    assert bash("tidemill brokers drain ") == ["1"]


@needs_bash
def test_bash_is_silent_without_a_broker(bash: Ask) -> None:
    assert bash("tidemill consume --bootstrap 127.0.0.1:1 ") == []


@needs_bash
def test_bash_completes_files(bash: Ask, tmp_path: Path) -> None:
    (tmp_path / "server.properties").touch()
    (tmp_path / "store").mkdir()
    assert bash("tidemill serve --config s") == ["server.properties", "store"]
    assert bash("tidemill serve --data-dir s") == ["store"]


@needs_bash
def test_tab_in_an_interactive_bash(target: RunningBroker, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(tmp_path), "PS1": "$ "}
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    try:
        os.write(ours, b"source <(tidemill completion bash); echo rea''dy\n")
        _read_until(ours, b"ready\r\n")
        os.write(ours, b"tidemill cluster des\t")
        _read_until(ours, b"tidemill cluster describe ")
    finally:
        shell.kill()
        shell.wait(LIMIT_S)
        os.close(ours)


def _read_until(descriptor: int, wanted: bytes) -> None:
    shown, deadline = b"", time.monotonic() + LIMIT_S
    while wanted not in shown:
        assert readable([descriptor], deadline - time.monotonic()), shown
        shown += os.read(descriptor, 65536)


def test_zsh_and_fish_get_descriptions(cli: Run) -> None:
    for shell in ("zsh", "fish"):
        lines = cli("completion", shell, "--line", "tidemill cluster st").ok.splitlines()
        assert lines == [
            "start\trun a cluster on this machine until Ctrl-C",
            "status\tshow the controller quorum, the brokers, and partitions that lack replicas",
        ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_valid(cli: Run, shell: str) -> None:
    script = cli("completion", shell).ok
    assert "tidemill completion" in script or '" completion' in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed to check the script's syntax")
    checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, timeout=LIMIT_S)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_an_unknown_shell_is_refused(cli: Run) -> None:
    assert cli("completion", "tcsh").code == 2
