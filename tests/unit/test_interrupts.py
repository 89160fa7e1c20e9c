"""Tests that send SIGINT work however they were started: in the background of a script too, where SIGINT is ignored."""

from __future__ import annotations

import subprocess
import sys

_STATE = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_a_process_that_a_test_starts_takes_interrupts() -> None:
    started = subprocess.run([sys.executable, "-c", _STATE], capture_output=True, text=True, check=True)
    assert started.stdout == "True\n"


def test_the_same_where_interrupts_are_ignored() -> None:
    name = test_a_process_that_a_test_starts_takes_interrupts.__name__
    # Without xdist, whose workers import the same conftest.py and show nothing more. With it a run once ended with 1 for
    # an unclosed resource; that did not come again in 34 runs on busy cores.
    options = "-q -p no:cacheprovider -p no:xdist"
    script = f"trap '' INT; exec {sys.executable} -m pytest {options} {__file__}::{name}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
