"""How settings reach the processes that this one starts: in variables that begin with TRTLLM, which upstream sends on.

What we put into the environment must not come back to us as if the user had put it there, so it is remembered.
"""

import os
from collections.abc import Mapping

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

_exported: dict[str, str] = {}
_said: dict[str, str] = {}  # by the program's own code; comes before files, as a command line would


def given() -> dict[str, str]:
    """The environment as the user made it, with what the program said over it."""
    return {name: value for name, value in environment().items() if _exported.get(name) != value} | _said


def say(variables: Mapping[str, str]) -> None:
    _said.clear()
    _said.update(variables)


def carry(settings: Settings) -> str:
    """Put the settings where child processes find them, and a job's name, which is returned."""
    before = given()
    job = environment().get(ENV_JOB) or f"{os.uname().nodename}-{os.getpid()}"
    new = {**as_variables(settings), ENV_ENABLED: "true", ENV_JOB: job}
    unset(name for name in _exported if name not in new)
    _exported.clear()
    _exported.update({name: value for name, value in new.items() if before.get(name) != value or name in _said})
    export(new)
    return job


def carried() -> dict[str, str]:
    return {name: value for name, value in environment().items() if name.startswith(ENV_PREFIX)}


def stop() -> None:
    """Child processes from now on run without."""
    unset(_exported)
    _exported.clear()
    _said.clear()
    export({ENV_ENABLED: "false"})
