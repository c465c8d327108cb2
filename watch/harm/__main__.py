"""`python -m watch.harm -n 20 -- COMMAND`: the judge of "harms nothing".

The exit code is 1 if hostrace changed what the command does, or reported a race in it, and 2 if nothing can be watched
here."""

import argparse
import os
import shutil
import sys
from pathlib import Path

import click

from hostrace import launch
from hostrace.errors import HostraceError
from hostrace.races import merged, read
from watch.harm.compare import harm, outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="watch.harm", description=__doc__)
    parser.add_argument("-n", "--times", type=int, default=3, help="runs of each kind")
    parser.add_argument("--hold", action="store_true", help="as hostrace --hold")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    command = [str(Path(given.command[0]).resolve()) if "/" in given.command[0] else given.command[0]]
    command += given.command[1:]
    try:
        folder, environ = launch.prepared(10_000 if given.hold else None)
    except HostraceError as error:
        error.show()
        return error.exit_code
    try:
        # In turns: a machine that is busy for a while is busy for both.
        pairs = [(outcome(command, os.environ), outcome(command, environ)) for _ in range(given.times)]
        races = [race for race in merged(read(folder)) if race.grade != "possible"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    harmed = harm((plain for plain, _ in pairs), (watched for _, watched in pairs))
    for each in harmed:
        click.echo(f"watched: {each}")
    if harmed:
        click.echo(f"plain: {pairs[0][0]}")
    click.echo(f"{len(harmed)} of {given.times} watched runs were harmed, {len(races)} races reported")
    return int(bool(harmed or races))


if __name__ == "__main__":
    sys.exit(main())
