"""The command line. Each command has a module with `add_arguments(parser)` and `run(options)`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .._errors import DispatchError
from . import bench, check, explain, info

COMMANDS = {"info": info, "explain": explain, "check": check, "bench": bench}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="linattn", description="Linear attention: what runs, why, how right, how fast."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status is 0 for success, 1 for a failure, 2 for bad usage."""
    options = make_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, TypeError, ImportError, DispatchError, NotImplementedError) as error:
        print(f"linattn {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        return 0
