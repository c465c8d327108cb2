"""Activation of the overlay in this process: the registry, its settings, and the points of upstream it acts at.

Nothing here runs before TensorRT-LLM is imported or `trtllm_kvfix.enable()` is called. The maker of an `Activation`
(trtllm_kvfix/process.py) names the fixes and the points, so nothing below knows them.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Protocol

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay import attest, carry, fuse, import_hook, parts
from trtllm_kvfix.overlay.agreement import rank_and_size
from trtllm_kvfix.overlay.fix import Fix, Replacement
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream, executed, is_importing
from trtllm_kvfix.runtime_files import folder_of
from trtllm_kvfix.settings import Settings

log = logging.getLogger("trtllm_kvfix")


class Participant(Protocol):
    """A module of upstream at whose import we replace something that is not a fix."""

    @property
    def TRIGGER(self) -> str: ...  # noqa: N802  modules are participants
    def replacements(self, active: "Activation") -> list[Replacement]: ...


class Activation:
    """One for each process, since there is one TensorRT-LLM in a process."""

    def __init__(
        self,
        fixes: Iterable[Fix],
        participants: Sequence[Participant],
        objection: Callable[[Settings, Any], str] = lambda _settings, _executor: "",
    ) -> None:
        """objection: looks at an engine that is about to start, and says why it must not, or nothing."""
        self.registry = Registry(fixes)
        self.objection = objection
        self.settings = Settings()
        self.on = False
        self.job = ""  # the same in every process of one start
        self.started = False  # an engine
        self._participants: dict[str, list[Participant]] = {}
        for each in participants:
            self._participants.setdefault(each.TRIGGER, []).append(each)
        self._said = ""  # the last line in the log about what is on
        self._lock = threading.RLock()
        fuse.watch(self._fault_seen)

    def activate(self, settings: Settings) -> None:
        """Watch for the modules that matter and handle those that are imported; with other settings, do it again."""
        with self._lock:
            _show_log()
            self.job = carry.carry(settings)
            self.settings, self.on = settings, True
            triggers = {name for fix in self.registry.fixes for name in (*fix.triggers, *fix.late)}
            import_hook.watch({*self._participants, *triggers}, self.imported)
            for name in self._participants:
                module = sys.modules.get(name)
                if module is not None and not is_importing(module):
                    self._take_part(name)
            self._apply()

    def deactivate(self) -> list[str]:
        """Take everything back. Returns the seams that another tool has replaced since."""
        with self._lock:
            import_hook.remove()
            self.on = self.started = False
            self._said = ""
            return self.registry.revert() + parts.revert()

    def imported(self, module: ModuleType) -> None:
        """The body of a module that matters has run."""
        with self._lock, executed(module.__name__):
            if not self.on:
                return
            if module.__name__ in self._participants:
                self._take_part(module.__name__)
            self.registry.loaded(module.__name__)
            self._apply()

    def attestation(self, refusal: str = "") -> attest.Attestation:
        """Attest what this process runs, and why it must not start, if so."""
        rank, world_size = rank_and_size()
        return attest.Attestation.of(
            self.registry.report(),
            variant=Upstream().variant(),
            job=self.job,
            rank=rank,
            world_size=world_size,
            started=self.started,
            aliases=self.registry.aliases() if self.started else [],  # it looks at all of upstream
            manager=self.settings.manager,
            parts=parts.seams(),
            refusal=refusal,
        )

    def say(self, line: str) -> None:
        """Log the line once for each text: upstream starts an engine twice, the first time to measure its memory."""
        if line != self._said:
            self._said = line
            log.info("%s", line)

    def _take_part(self, name: str) -> None:
        parts.install(name, [made for each in self._participants[name] for made in each.replacements(self)])

    def _apply(self) -> None:
        before = self.registry.report().applied
        if self.registry.apply(self.settings).applied != before:
            self._publish()

    def _fault_seen(self) -> None:
        if self.on:
            self._publish()

    def _publish(self) -> None:
        """Let `status` see a process that has no engine, or none yet."""
        try:
            attest.write(folder_of(self.settings), self.attestation())
        except KvfixError as error:
            log.warning("%s", error)


def _show_log() -> None:
    """Our lines go to stderr unless the application has set up logging; it may also have chosen a level."""
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if log.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[trtllm-kvfix] [%(process)d] %(message)s"))
    log.addHandler(handler)
    log.propagate = False
