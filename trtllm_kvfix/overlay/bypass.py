"""What runs in a server whose fixes are switched off: little, and none of it may be in the way of the start.

Upstream refuses the section `kvfix:`, so it is taken out of the server's configuration. A pod whose probe or Prometheus
asks the port of metrics must find somebody there, so each rank serves them; they say that every fix is off, as `status`
does. Settings that are wrong are passed over: the switch is what one reaches for when nothing else works.

For the same reason the switch is read before the fixes are imported, whose extension may be what cannot be loaded.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import yaml

from trtllm_kvfix.foreign_files import text_of
from trtllm_kvfix.log import described, log
from trtllm_kvfix.overlay import child_environment, import_hook, server_config, watcher
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, STARTS, Upstream, executed, is_importing
from trtllm_kvfix.ranks import rank_and_size
from trtllm_kvfix.settings import (
    ENV_ENABLED,
    ENV_FILE,
    FILE_BYTES_MAX,
    SECTION,
    UNREADABLE,
    Settings,
    as_variables,
    environment,
    export,
    fix_ids,
    load,
    switched_off,
    variable_of,
)

# Settings that say where a rank can be asked, and change nothing of what it does.
KEPT = ("metrics_port", "runtime_dir")


def begin() -> bool:
    """TensorRT-LLM is about to be imported. True: the switch is off, and nothing else of ours is to begin."""
    if not switched_off(environment()):
        return False
    stand_by()
    return True


def stand_by() -> None:
    """From now on this process and those that it starts run without the fixes."""
    export({ENV_ENABLED: "false"})
    with suppress(OSError):  # the watcher of an outer `run` looks for it
        watcher.leave_mark()
    import_hook.watch(WRAPPED, _wrap)
    for name in WRAPPED:
        module = sys.modules.get(name)
        if module is not None and not is_importing(module):
            _wrap(module)


def _wrap(module: ModuleType) -> None:
    place, paths, wrapper = WRAPPED[module.__name__]
    try:
        with executed(module.__name__):
            path = next((each for each in paths if Upstream().has(place, each)), None)
            if path is not None:
                owner, _, name = path.rpartition(".")
                holder = Upstream().attribute(place, owner) if owner else sys.modules[place]
                setattr(holder, name, wrapper(getattr(holder, name)))
    except Exception as error:
        log.show()
        log.warning("%s stays as it is, without the fixes: %s", place, described(error))


def ignoring(update: Callable[..., Any]) -> Callable[..., Any]:
    """Take the section out of the server's configuration."""

    @wraps(update)
    def update_llm_args_with_extra_dict(llm_args: Any, llm_args_dict: Any, *args: Any, **kwargs: Any) -> Any:
        rest = llm_args_dict
        if isinstance(rest, dict) and SECTION in rest:
            rest = {key: value for key, value in rest.items() if key != SECTION}
            problem = _problem_of(llm_args_dict, (*args, *kwargs.values()))
            log.show()
            log.warning(
                "%s is false: the server starts WITHOUT the fixes, and `%s:` in its configuration is ignored%s",
                ENV_ENABLED,
                SECTION,
                f". With the switch on, it would be refused: {problem}" if problem else "",
            )
            export(as_variables(right_ones(llm_args_dict[SECTION])))  # for ranks in other processes
        return update(llm_args, rest, *args, **kwargs)

    return update_llm_args_with_extra_dict


def _problem_of(document: Mapping[Any, Any], named: Iterable[Any]) -> str:
    try:
        server_config.settings_of(document[SECTION], server_config.file_of(document, named), {})
    except Exception as error:
        return described(error)
    return ""


def telling(start: Callable[..., Any]) -> Callable[..., Any]:
    """Say of an engine that starts that it has no fixes."""

    @wraps(start)
    def start_without_fixes(self: Any, *args: Any, **kwargs: Any) -> Any:
        if switched_off(environment()):  # a program may have turned them on since
            _tell()
        return start(self, *args, **kwargs)

    return start_without_fixes


@cache
def _tell() -> None:
    """Once for each process: upstream starts an engine twice."""
    log.show()
    try:
        rank, size = rank_and_size()
        log.warning(
            "rank %d of %d runs WITHOUT the fixes: they are switched off (%s or kvfix.enabled is false)",
            rank, size, ENV_ENABLED,
        )  # fmt: skip
        settings = right_ones()
    except Exception as error:
        log.warning("nobody will hear that the fixes are switched off: %s", described(error))
        return
    for told in (_serve_metrics, _attest):
        try:
            told(settings, rank, size)
        except Exception as error:
            log.warning("the fixes are switched off, and not everybody will hear it: %s", described(error))


def _serve_metrics(settings: Settings, rank: int, _size: int) -> None:
    from trtllm_kvfix.metrics.exporter import serve  # noqa: PLC0415  nothing here needs it before

    if settings.metrics_port is not None:
        serve(settings.metrics_port, rank, lambda: dict.fromkeys(fix_ids(), "off"))


def _attest(settings: Settings, rank: int, size: int) -> None:
    from trtllm_kvfix.overlay import attest  # noqa: PLC0415  it needs the extension
    from trtllm_kvfix.overlay.registry import FixStatus, Statuses  # noqa: PLC0415  so does this
    from trtllm_kvfix.runtime_files import folder_of  # noqa: PLC0415

    fixes = tuple(FixStatus(fix_id, "", "off", None, applied=False, seams={}) for fix_id in fix_ids())
    attestation = attest.Attestation.of(
        Statuses(fixes),
        variant=Upstream().variant(),
        job=child_environment.job_here(),
        rank=rank,
        world_size=size,
        started=True,
        aliases=[],
        canaries=[],
        manager="upstream",
        enabled=False,
    )
    attest.write(folder_of(settings), attestation)


def kept(settings: Settings) -> Settings:
    return Settings(**{name: getattr(settings, name) for name in KEPT})


def right_ones(section: Any = None) -> Settings:
    """What is right of the settings that matter here. `section`: `kvfix:` in the server's configuration."""
    environ = environment()
    sections = [each for each in (_section_of(environ.get(ENV_FILE)), section) if isinstance(each, dict)]
    right: dict[str, Any] = {}
    for name in KEPT:
        for each in sections:
            right |= _right({}, {name: each.get(name)})
        variable = variable_of((name,))
        right |= _right({variable: environ.get(variable, "")}, {})
    return Settings(**right)


def _right(environ: Mapping[str, str], section: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return load(environ=environ, section=section).model_dump(exclude_defaults=True)
    except Exception:  # a wrong setting, or a file that is odder than we know
        return {}


def _section_of(file: str | None) -> Any:
    try:
        return yaml.safe_load(text_of(Path(file or ""), FILE_BYTES_MAX))[SECTION]
    except UNREADABLE:
        return None


Wrapper: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

# By the module at whose import it is done: where, what, by what. Of several, the first that is there is wrapped.
WRAPPED: Mapping[str, tuple[str, tuple[str, ...], Wrapper]] = {
    server_config.TRIGGER: (server_config.TRIGGER, (server_config.FUNCTION,), ignoring),
    PY_EXECUTOR: (PY_EXECUTOR, STARTS, telling),
    child_environment.TRIGGER: (
        child_environment.FUTURES,
        ("MPIPoolExecutor.__init__",),
        child_environment.with_initializer,
    ),
}
