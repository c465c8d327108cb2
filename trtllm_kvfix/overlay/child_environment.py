"""Carry settings to the processes that this one starts, in variables that begin with TRTLLM: upstream sends those on.

This module remembers what we put into the environment, so that we do not later take it for the user's.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from trtllm_kvfix.settings import (
    ENV_ENABLED,
    ENV_JOB,
    ENV_PREFIX,
    Settings,
    as_variables,
    environment,
    export,
    unset,
)


class _Exported(NamedTuple):
    value: str
    before: str | None  # what the user had there


class State(NamedTuple):
    said: dict[str, str]
    exported: dict[str, _Exported]
    carried: dict[str, str]


_exported: dict[str, _Exported] = {}
_said: dict[str, str] = {}  # by the program's own code; comes before files, as a command line would


def given() -> dict[str, str]:
    """The environment as the user made it, overridden by the program's own settings."""
    found = environment()
    for name, ours in _exported.items():
        if found.get(name) != ours.value:
            continue  # somebody has set it since
        if ours.before is None:
            del found[name]
        else:
            found[name] = ours.before
    return found | _said


def say(variables: Mapping[str, str]) -> None:
    _said.clear()
    _said.update(variables)


def carry(settings: Settings) -> str:
    """Put the settings where child processes find them, and a job's name, which is returned."""
    job = environment().get(ENV_JOB) or f"{os.uname().nodename}-{os.getpid()}"
    _take_back()
    before = environment()
    new = {**as_variables(settings), ENV_ENABLED: "true", ENV_JOB: job}
    _exported.update({name: _Exported(value, before.get(name)) for name, value in new.items()})
    export(new)
    return job


def carried() -> dict[str, str]:
    return {name: value for name, value in environment().items() if name.startswith(ENV_PREFIX)}


def stop() -> None:
    """Child processes from now on run without the fixes."""
    _said.clear()
    _take_back()
    export({ENV_ENABLED: "false"})


def state() -> State:
    return State(dict(_said), dict(_exported), carried())


def restore(before: State) -> None:
    """Undo what has been said and carried since."""
    say(before.said)
    _exported.clear()
    _exported.update(before.exported)
    unset(carried())
    export(before.carried)


def _take_back() -> None:
    user = {name: value for name, value in given().items() if name in _exported and name not in _said}
    unset(_exported)
    _exported.clear()
    export(user)
