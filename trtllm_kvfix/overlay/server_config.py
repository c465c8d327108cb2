"""The section `kvfix:` in the YAML that trtllm-serve and trtllm-bench take.

Upstream refuses unknown keys, so we take ours out of the parsed file before upstream looks at it. Without the hook it
refuses the file, which is right: a configuration that asks for the fixes never runs without them.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import log
from trtllm_kvfix.overlay import carry, server_file
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.settings import SECTION

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
    settings = server_file.settings_of(section, file, carry.given())
    if server_file.switched_off(section):
        log.warning("%s.enabled is false in the server's configuration: it starts WITHOUT the fixes", SECTION)
        active.deactivate()
        carry.stop()
    else:
        active.activate(settings)
    return {key: value for key, value in document.items() if key != SECTION}
