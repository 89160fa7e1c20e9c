"""The `tidemill` command: one module per subcommand, imported only when it is used, so that starting stays quick."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from tidemill import __version__
from tidemill.errors import TidemillError

# Subcommand: (module with `add_arguments(parser)` and `run(arguments) -> exit code`, what it does)
COMMANDS = {"serve": ("tidemill.cli.serve", "run a broker")}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="tidemill", description="A distributed message queue that speaks the Kafka wire protocol."
    )
    parser.add_argument("--version", action="version", version=f"tidemill {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        if name in words:
            importlib.import_module(module).add_arguments(command)
    parsed = parser.parse_args(words)
    try:
        exit_code: int = importlib.import_module(COMMANDS[parsed.command][0]).run(parsed)
    except TidemillError as error:
        print(f"tidemill {parsed.command}: {error}", file=sys.stderr)
        return 1
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
