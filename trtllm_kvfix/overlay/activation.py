"""Activation of the overlay in this process: its settings, and when the registry acts.

Nothing here runs before TensorRT-LLM is imported or `trtllm_kvfix.enable()` is called. The maker of an `Activation`
(trtllm_kvfix/process.py) names the fixes and what else replaces something, so nothing below knows them.
"""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.forks import ForkedLock
from trtllm_kvfix.living import Living
from trtllm_kvfix.log import log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import attest, bypass, fuse, import_hook, reach
from trtllm_kvfix.overlay.child_environment import ChildEnvironment, job_here
from trtllm_kvfix.overlay.fix import Replacement
from trtllm_kvfix.overlay.recheck import Recheck
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, Upstream, executed, is_importing
from trtllm_kvfix.ranks import rank_and_size
from trtllm_kvfix.runtime_files import Owner, folder_of
from trtllm_kvfix.settings import Settings, as_variables, export


class Replacing(Protocol):
    """A module of ours, or an object, that replaces something of upstream's and fixes nothing."""

    @property
    def TRIGGER(self) -> str: ...  # noqa: N802  a module's constant: the module of upstream at whose import it does so
    def replacements(self, active: "Activation") -> list[Replacement]: ...


class Activation:
    """One for each process, since there is one TensorRT-LLM in a process."""

    def __init__(
        self,
        registry: Registry,
        others: Sequence[Replacing],
        objection: Callable[[Settings, Any], str] = lambda _settings, _executor: "",
        canaries: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """objection: looks at an engine that is about to start, and says why it must not, or nothing. canaries: what
        those of this process attest."""
        self.engines: Living[Any] = Living()  # upstream's executors that have started here
        self.registry = registry
        registry.live = self._live
        self.children = ChildEnvironment()
        self.objection = objection
        self._canaries = canaries
        self.settings = Settings()
        self.on = False
        self.job = ""  # the same in every process of one start
        self.started = False  # an engine
        self._others: dict[str, list[Replacing]] = {}
        for each in others:
            self._others.setdefault(each.TRIGGER, []).append(each)
        self._complaint = ""  # the last one about the attestation
        self._said = ""  # the last line in the log about what is on
        self._lock = ForkedLock()
        self._recheck = Recheck(self._look_again)
        self._aliases: list[str] = []  # as they were at the last look at all of upstream
        self._displaced: dict[str, str] = {}  # as the log has it
        self._publishing = ForkedLock()  # guards what follows, and the file; taken last
        self._published: attest.Attestation | None = None
        self._file: Path | None = None  # where it is
        fuse.watch(self._fault_seen)

    def activate(self, settings: Settings, said: Mapping[str, str] | None = None) -> None:
        """Watch for the modules that matter and handle those that are imported; with other settings, do it again.

        said: the variables that the program's own code has asked for, if this is its call.
        """
        with self._lock():
            log.show()
            self.job = job_here()
            self.settings, self.on = settings, True
            counters.enabled.put(1)
            triggers = {name for fix in self.registry.fixes for name in (*fix.triggers, *fix.late)}
            import_hook.watch({*self._others, *triggers}, self.imported)
            for name in self._others:
                module = sys.modules.get(name)
                if module is not None and not is_importing(module):
                    self._replace_others(name)
            self._find_engines()
            self._apply()
            self.children.carry(settings, self.job, said)
            if self.engines.all() and not self.started:
                self.engine_starts(None)
                self._publish()

    def deactivate(self) -> list[str]:
        """Take everything back. Returns the seams that another tool has replaced since."""
        with self._lock():
            import_hook.remove()
            self._recheck.stop()
            self.on = self.started = False
            counters.enabled.put(0)
            self._aliases, self._displaced = [], {}
            self._said = ""
            left = self.registry.revert()
            self._withdraw()
            return left

    def switch_off(self, settings: Settings) -> None:
        """The server's own configuration wants no fixes, after all. Ranks in other processes are to hear the same."""
        self.deactivate()
        self.children.stop()
        export(as_variables(bypass.kept(settings)))
        bypass.stand_by()

    def imported(self, module: ModuleType) -> None:
        """The body of a module that matters has run."""
        with self._lock(), executed(module.__name__):
            if not self.on:
                return
            if module.__name__ in self._others:
                self._replace_others(module.__name__)
            self.registry.loaded(module.__name__)
            self._apply()

    def engine_starts(self, executor: Any) -> None:
        """From now on what this process attests is compared with upstream's objects every few seconds."""
        self.started = True
        if executor is not None:
            self.engines.add(executor)
        self._aliases = self.registry.aliases()
        self._recheck.start()

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
            aliases=self._aliases,
            manager=self.settings.manager,
            canaries=self._canaries(),
            refusal=refusal,
        )

    def say(self, line: str) -> None:
        """Log the line once for each text: upstream starts an engine twice, the first time to measure its memory."""
        if line != self._said:
            self._said = line
            log.info("%s", line)

    def tell_displaced(self, displaced: dict[str, str]) -> None:
        """Log each seam once when another tool takes it, and when it comes back to us."""
        for name, by in displaced.items():
            if self._displaced.get(name) != by:
                log.error("%s was replaced by another tool after us: calls come to %s, past what we mend", name, by)
        for name in self._displaced.keys() - displaced.keys():
            log.warning("%s is ours again", name)
        self._displaced = displaced

    def publish(self, attestation: attest.Attestation) -> None:
        with self._publishing():
            if not self.on:
                return  # switched off since
            file = attest.write(folder_of(self.settings), attestation)
            if self._file not in (None, file):
                self._withdraw()
            self._published, self._file = attestation, file

    def _withdraw(self) -> None:
        """What this process has attested holds no more. A child of fork() has attested nothing."""
        with self._publishing():
            if self._file is not None and Owner.of(self._file, attest.SUFFIX) == Owner.ours():
                try:
                    self._file.unlink(missing_ok=True)
                except OSError as error:
                    log.warning("%s says what this process does no more: %s", self._file, error)
            self._published = self._file = None

    def _look_again(self) -> None:
        if not self.on or not self.started:
            return
        now = self.attestation()
        self.tell_displaced(now.displaced)
        if now != self._published or not attest.confirm(folder_of(self.settings)):
            self._publish()

    def _live(self) -> Iterator[Any]:
        """The objects of engines that run here: the executor, what it holds, and what that holds."""
        for executor in self.engines.all():
            yield executor
            for part in _held_by(executor):
                yield part
                yield from _held_by(part)

    def _find_engines(self) -> None:
        """Those that started while the fixes were off."""
        kind = getattr(Upstream().module(PY_EXECUTOR), "PyExecutor", None)
        if self.started or not isinstance(kind, type):
            return
        known = {id(each) for each in self.engines.all()}
        for each in gc.get_objects():
            if issubclass(type(each), kind) and id(each) not in known:
                self.engines.add(each)

    def _replace_others(self, name: str) -> None:
        self.registry.install(name, [made for each in self._others[name] for made in each.replacements(self)])

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
            self.publish(self.attestation())
        except KvfixError as error:
            self.complain(error)

    def complain(self, error: KvfixError) -> None:
        """Log once for each text that the attestation cannot be written: it is tried again every few seconds."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("%s", error)


def _held_by(one: Any) -> list[Any]:
    """What an object has as attributes, and the managers that are in a dictionary."""
    held = list(reach.attributes(one).values())
    return held + [each for some in held if reach.is_a(some, dict) for each in list(dict.values(some))]
