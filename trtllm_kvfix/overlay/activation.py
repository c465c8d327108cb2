"""What is on in this process: the registry, its settings, and the points of upstream at which they take part.

Nothing here runs before TensorRT-LLM is imported or `trtllm_kvfix.enable()` is called.
"""

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay import attest, carry, import_hook, seam
from trtllm_kvfix.overlay.fix import Replacement
from trtllm_kvfix.overlay.registry import Registry, Report
from trtllm_kvfix.overlay.upstream import executed, is_importing
from trtllm_kvfix.settings import Settings, load, runtime_dir

log = logging.getLogger("trtllm_kvfix")


@dataclass
class Active:
    settings: Settings
    registry: Registry
    job: str  # the same in every process of one start
    installed: list[seam.Installed] = field(default_factory=list)  # other than by fixes
    started: bool = False  # an engine
    said: str = ""  # the last line in the log about what is on


_lock = threading.RLock()
_active: Active | None = None


def current() -> Active | None:
    return _active


def begin() -> None:
    """TensorRT-LLM is about to be imported and the hook is there: read the switch."""
    settings = load()
    if settings.enabled:
        activate(settings)


def activate(settings: Settings) -> Active:
    """Watch for the modules that matter and deal with those that are there already; with other settings, again."""
    global _active  # noqa: PLW0603  there is one TensorRT-LLM in a process
    with _lock:
        _show_log()
        job = carry.carry(settings)
        if _active is None:
            _active = Active(settings, Registry(), job)
        active = _active
        active.settings = settings
        points = participants()
        import_hook.watch({*points, *(name for fix in active.registry.fixes for name in fix.triggers)}, imported)
        for name, replacements in points.items():
            module = sys.modules.get(name)
            if module is not None and not is_importing(module):
                _participate(active, name, replacements)
        _apply(active)
        return active


def deactivate() -> list[str]:
    """Take everything back. Returns the seams that somebody else has replaced since."""
    global _active
    with _lock:
        active, _active = _active, None
        import_hook.remove()
        if active is None:
            return []
        left = active.registry.revert()
        left += [str(each.seam) for each in reversed(active.installed) if not each.restore()]
        return left


def imported(module: ModuleType) -> None:
    """The body of a module that matters has run."""
    with _lock, executed(module.__name__):
        if _active is None:
            return
        replacements = participants().get(module.__name__)
        if replacements is not None:
            _participate(_active, module.__name__, replacements)
        _apply(_active)


def report() -> Report | None:
    return _active.registry.report() if _active is not None else None


def participants() -> dict[str, Callable[[], list[Replacement]]]:
    """Upstream modules in which we replace something that mends nothing but lets us take part."""
    from trtllm_kvfix.overlay import server_config, start_gate, workers  # noqa: PLC0415  they import this module

    return {point.TRIGGER: point.replacements for point in (server_config, start_gate, workers)}


def _show_log() -> None:
    """Our lines go to stderr unless the application has said where lines go; it may also have said which."""
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if log.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[trtllm-kvfix] [%(process)d] %(message)s"))
    log.addHandler(handler)
    log.propagate = False


def _participate(active: Active, name: str, replacements: Callable[[], list[Replacement]]) -> None:
    """Once: `name`, the module whose import led here, stands where a fix has its id."""
    if not any(each.fix_id == name for each in active.installed):
        active.installed += [seam.install(each, name) for each in replacements()]


def _apply(active: Active) -> None:
    before = active.registry.report().applied
    if active.registry.apply(active.settings).applied != before:
        _publish(active)


def _publish(active: Active) -> None:
    """Let `status` see a process that has no engine, or none yet."""
    from trtllm_kvfix.overlay import start_gate  # noqa: PLC0415  it imports this module

    try:
        attest.write(runtime_dir(active.settings), start_gate.described(active))
    except KvfixError as error:
        log.warning("%s", error)
