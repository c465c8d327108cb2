"""A child that dies or hangs costs the step that it was in. These children keep to the protocol and do nothing else."""

import sys

from trtllm_kvfix.tools.selfcheck import steps
from trtllm_kvfix.tools.selfcheck.steps import StepOutcome

CHILD = """
import os, signal, sys, threading
from multiprocessing.connection import Connection
descriptor, *names = sys.argv[1:]
report = Connection(int(descriptor), readable=False)
for name in names:
    print("upstream greets")
    if name == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "exits":
        os._exit(3)
    if name == "is interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    if name == "hangs":
        threading.Event().wait()
    report.send(("right",))
"""
COMMAND = (sys.executable, "-c", CHILD)
RIGHT = StepOutcome("right")


def test_a_child_that_dies_costs_one_step() -> None:
    told: list[int] = []
    outcomes = steps.run(["a", "segfaults", "b", "exits", "c"], limit_s=60, child=COMMAND, ended=told.append)
    assert outcomes == {
        "a": RIGHT,
        "segfaults": StepOutcome("died", "the process was ended by SIGSEGV"),
        "b": RIGHT,
        "exits": StepOutcome("died", "the process exited with 3"),
        "c": RIGHT,
    }
    assert told == [1, 3, 5]


def test_a_child_that_hangs_is_ended() -> None:
    outcomes = steps.run(["hangs", "a"], limit_s=5, child=COMMAND)
    assert outcomes == {"hangs": StepOutcome("died", "it did not end within 5 s"), "a": RIGHT}


def test_ctrl_c_is_the_command_s_alone() -> None:
    """A terminal sends it to children, too, and theirs would be tracebacks."""
    outcomes = steps.run(["is interrupted", "a"], limit_s=60, child=COMMAND)
    assert outcomes == {"is interrupted": RIGHT, "a": RIGHT}


def test_a_child_that_does_not_start_is_the_outcome_of_every_step() -> None:
    outcomes = steps.run(["a", "b"], limit_s=60, child=(sys.executable, "-c", "raise SystemExit(5)"))
    assert set(outcomes.values()) == {StepOutcome("died", "the process exited with 5")}
