"""The section `kvfix:` in the YAML that trtllm-serve and trtllm-bench take.

Upstream refuses unknown keys, so we take ours out of the parsed file before upstream looks at it. Without the hook it
refuses the file, which is right: a configuration that asks for the fixes never runs without them unless somebody says
so, by TRTLLM_KVFIX_ENABLED. That switch must start the server at any time, so the section is taken out then, too.
"""

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import described, log
from trtllm_kvfix.overlay import import_hook, server_file
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.settings import ENV_ENABLED, SECTION

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation


TRIGGER = "tensorrt_llm.llmapi.llm_args"
FUNCTION = "update_llm_args_with_extra_dict"


def replacements(active: "Activation") -> list[Replacement]:
    if not Upstream().has(TRIGGER, FUNCTION):
        return []
    return [Replacement(Seam(TRIGGER, FUNCTION), partial(taking_out, active))]


def taking_out(active: "Activation", update: Callable[..., Any]) -> Callable[..., Any]:
    def update_llm_args_with_extra_dict(llm_args: Any, llm_args_dict: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            rest = without_section(active, llm_args_dict, (*args, *kwargs.values()))
        except SettingsError as error:
            server_file.end(error)
        return update(llm_args, rest, *args, **kwargs)

    return update_llm_args_with_extra_dict


def without_section(active: "Activation", document: Any, named: Iterable[Any] = ()) -> Any:
    """Honour the section and return the rest; the caller's dictionary stays as it is. `named`: what upstream was given
    besides, perhaps the name of the file."""
    if not isinstance(document, dict) or SECTION not in document:
        return document
    section = document[SECTION]
    file = server_file.file_of(document, named)
    settings = server_file.settings_of(section, file, active.children.given())
    if server_file.switched_off(section):
        log.warning("%s.enabled is false in the server's configuration: it starts WITHOUT the fixes", SECTION)
        active.deactivate()
        active.children.stop()
    else:
        active.activate(settings)
    return {key: value for key, value in document.items() if key != SECTION}


def ignore_section() -> None:
    """The switch is off: take the section out, and do nothing else."""
    import_hook.watch([TRIGGER], _ignore_section)


def _ignore_section(module: ModuleType) -> None:
    update = getattr(module, FUNCTION, None)
    if update is not None:
        setattr(module, FUNCTION, ignoring(update))


def ignoring(update: Callable[..., Any]) -> Callable[..., Any]:
    def update_llm_args_with_extra_dict(llm_args: Any, llm_args_dict: Any, *args: Any, **kwargs: Any) -> Any:
        rest = llm_args_dict
        if isinstance(rest, dict) and SECTION in rest:
            rest = {key: value for key, value in rest.items() if key != SECTION}
            log.show()
            log.warning(
                "%s is false: the server starts WITHOUT the fixes, and `%s:` in its configuration is ignored%s",
                ENV_ENABLED,
                SECTION,
                _problem_of(llm_args_dict, (*args, *kwargs.values())),
            )
        return update(llm_args, rest, *args, **kwargs)

    return update_llm_args_with_extra_dict


def _problem_of(document: dict[Any, Any], named: Iterable[Any]) -> str:
    try:
        server_file.settings_of(document[SECTION], server_file.file_of(document, named), {})
    except Exception as error:  # nothing of ours may be in the way of this start
        return f". With the switch on, it would be refused: {described(error)}"
    return ""
