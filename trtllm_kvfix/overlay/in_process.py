"""`trtllm_kvfix.enable()`, `disable()` and `status()`: for scripts, Ray actors and processes of `multiprocessing`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_kvfix.overlay import activation, carry, launch
from trtllm_kvfix.settings import ENV_ENABLED, as_variables, environment, export, load


def enable(config: Path | str | None, section: Mapping[str, Any]) -> dict[str, Any]:
    # Called in the code of a program, it comes before a switch in its environment, as a command line would.
    said = as_variables(load(environ={}, section={**section, "enabled": True}))
    carry.say({**said, ENV_ENABLED: "true"})
    settings = load(Path(config) if config is not None else None, carry.given())
    active = activation.activate(settings)
    export({launch.PATH: launch.variables(settings, environment(), active.job)[launch.PATH]})
    return status()


def disable() -> list[str]:
    left = activation.deactivate()
    carry.stop()
    return left


def status() -> dict[str, Any]:
    active = activation.current()
    if active is None:
        return {"enabled": False, "fixes": {}}
    return {
        "enabled": True,
        "job": active.job,
        "started": active.started,
        "fixes": {each.id: each.as_dict() for each in active.registry.report().fixes},
        "aliases": active.registry.aliases(),
    }
