"""The programs in C++ on another machine, emulated: `python -m watch.harm.emulated LIBHOSTRACE_SO`.

Everything is compiled for aarch64, the driver that is made up included, and runs under QEMU, plain and watched.
Programs that look for their own system calls are left out, because QEMU does not tell those of the emulated machine,
and so are children, which run on the real one, libraries that only a test makes, and what QEMU does not do: take robust
mutexes from threads that end, keep back what is sent of signals of faults, and say in /proc/self/maps which memory may
be run. A process that may not write a file leaves no report to be judged by. On aarch64 nobody hands over calls past
the C library. A program that races has to be reported."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from hostrace import launch
from hostrace.races import Watched, merged, read
from watch.harm.compare import Outcome, outcome

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "watch/harm/programs.cc", *sorted((ROOT / "watch/harm").glob("programs_of_*.cc"))]
PREFIX, QEMU, TREE = "aarch64-linux-gnu-", "qemu-aarch64", "/usr/aarch64-linux-gnu"
LEFT_OUT = (
    *("blocked_", "condition_beside_", "mutex_beside_", "waits_for_", "handlers_that_interrupt"),
    *("calls_of_a_library_", "children_", "commands_", "raw_call", "robust_mutexes_", "signals_that_are_sent_"),
    *("code_in_registered_memory", "files_that_may_not_grow"),
)
LIMIT_S = 60.0


def compiled(sources: list[Path], to: Path, *flags: str) -> Path:
    command = [f"{PREFIX}g++", "-std=c++20", "-O1", "-w", "-I", str(ROOT / "watch/cpp"), *flags, "-o", str(to)]
    subprocess.run([*command, *map(str, sources), "-ldl", "-lpthread"], check=True)
    return to


class Machine:
    def __init__(self, library: Path, folder: Path) -> None:
        self.library, self.folder = library.resolve(), folder
        self.driver = compiled([ROOT / "watch/tests/fake_driver.cc"], folder / "libcuda.so.1", "-shared", "-fPIC")

    def command(self, *command: str, **variables: str) -> list[str]:
        given = {"LD_LIBRARY_PATH": str(self.folder), **variables}
        settings = (part for name, value in given.items() for part in ("-E", f"{name}={value}"))
        return [QEMU, "-L", TREE, *settings, *command]

    def plain(self, *command: str) -> Outcome:
        return outcome(self.command(*command), os.environ, LIMIT_S)

    def watched(self, *command: str) -> tuple[Outcome, list[Watched]]:
        with tempfile.TemporaryDirectory() as reports:
            ours = str(self.library)
            variables = {launch.ENV_PRELOAD: ours, launch.ENV_INJECTION: ours, launch.ENV_FOLDER: reports}
            more = {launch.ENV_GATES: "1", launch.ENV_CUPTI: str(self.driver)}
            seen = outcome(self.command(*command, **variables, **more), os.environ, LIMIT_S)
            return seen, read(Path(reports))


def harmed(machine: Machine, programs: str, name: str) -> bool:
    plain = machine.plain(programs, name)
    seen, processes = machine.watched(programs, name)
    guarded = [process.numbers["guarded"] for process in processes]
    races = [race for race in merged(processes) if race.grade != "possible"]
    bad = seen != plain or plain.status is None or bool(races) or not all(guarded)
    click.echo(f"{name}: HARMED: {seen}, plain {plain}, {races}" if bad else f"{name}: {sum(guarded)} uses watched")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(prog="watch.harm.emulated", description=__doc__)
    parser.add_argument("library", type=Path, help="hostrace, compiled for aarch64")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = Machine(given.library, folder)
        programs = str(compiled(SOURCES, folder / "programs", "-DHARM_CUDA_LEAVES_ERRNO"))
        names = [each for each in machine.plain(programs).out.decode().split() if each]
        names = [each for each in names if not any(part in each for part in LEFT_OUT)]
        bad = [each for each in names if harmed(machine, programs, each)]
        _, processes = machine.watched(str(compiled([ROOT / "watch/tests/racy.cc"], folder / "racy")))
        races = [(race.grade, race.touch) for race in merged(processes)]
    click.echo(f"{len(bad)} of {len(names)} programs were harmed; the one that races: {races}")
    return int(bool(bad) or not names or races != [("race", "write")])


if __name__ == "__main__":
    sys.exit(main())
