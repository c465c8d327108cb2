"""The overlay of this process: all fixes and all other replacements, and the calls that turn them on and off.

The one place that knows both the overlay and the fixes. It is imported when TensorRT-LLM is, or when a program calls
`trtllm_kvfix.enable()`: in scripts, Ray actors and processes of `multiprocessing`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trtllm_kvfix.canary import here as here_canaries
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.log import log
from trtllm_kvfix.managers import constructors
from trtllm_kvfix.overlay import (
    block_counts,
    bypass,
    child_environment,
    import_hook,
    launch,
    server_config,
    server_end,
    start_gate,
    watcher,
)
from trtllm_kvfix.overlay.activation import Activation
from trtllm_kvfix.overlay.registry import here
from trtllm_kvfix.recording import recorder
from trtllm_kvfix.settings import ENV_ENABLED, Settings, as_variables, environment, load


def objection(settings: Settings, executor: Any) -> str:
    """Why an engine must not start, or nothing."""
    return constructors.objection(settings, executor) or recorder.objection(settings, executor)


here.fixes = ALL
active = Activation(
    here,
    (server_config, start_gate, server_end, child_environment, block_counts, recorder, *constructors.ALL),
    objection,
    here_canaries.attested,
)


def begin() -> None:
    """TensorRT-LLM is about to be imported and the hook is there: read the settings."""
    _leave_mark()
    server_end.show_our_errors()
    settings = load()
    if settings.enabled:
        active.activate(settings)
    else:
        bypass.stand_by()


def enable(config: Path | str | None, section: Mapping[str, Any]) -> dict[str, Any]:
    # A call in a program's code overrides a switch in its environment, as a command line would.
    said = as_variables(load(environ={}, section={**section, "enabled": True}))
    _leave_mark()
    file = Path(config) if config is not None else None
    with _all_or_nothing():
        load(file, active.children.given(said={}))  # what the call overrides must be right, too
        said[ENV_ENABLED] = "true"
        active.activate(load(file, active.children.given(said)), said)
    active.children.lead(launch.path_with_hook(environment()))
    return status()


def _leave_mark() -> None:
    try:
        watcher.leave_mark()
    except OSError as error:
        log.warning("the watcher of `trtllm-kvfix run` will miss this process: %s", error)


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """An error leaves everything as it was: off, or on with the settings of the hook or of an earlier call."""
    was_on, settings = active.on, active.settings
    is_waiting = bool(import_hook.finder.before)  # the hook has not read its switch yet
    try:
        yield
    except BaseException:
        try:
            if was_on:
                with suppress(Exception):  # those settings may have failed before; it stays on, so no engine starts
                    active.activate(settings)
            else:
                active.deactivate()
        finally:
            if is_waiting:
                import_hook.install()
        raise


def disable() -> list[str]:
    left = active.deactivate()
    active.children.stop()
    return left


def status() -> dict[str, Any]:
    if not active.on:
        return {"enabled": False, "fixes": {}}
    return {
        "enabled": True,
        "job": active.job,
        "started": active.started,
        "manager": active.settings.manager,
        "fixes": {each.id: each.as_dict() for each in active.registry.report().fixes},
        "aliases": active.registry.aliases(),
    }
