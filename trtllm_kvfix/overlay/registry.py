"""The registry of what this process has put into upstream: the fixes, of which it applies all or none, and the others.

There is one for each process (`here`), since there is one TensorRT-LLM in a process.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.forks import ForkedLock
from trtllm_kvfix.log import described, log
from trtllm_kvfix.overlay import fuse, seam
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, State
from trtllm_kvfix.overlay.upstream import Upstream, exists
from trtllm_kvfix.settings import Settings, Word


class ApplyError(KvfixError):
    """A fix that is needed could not be applied, so none is."""


@dataclass(frozen=True)
class FixStatus:
    id: str
    title: str
    choice: Word
    answer: Answer | None  # None: not all of its triggers have been imported
    applied: bool
    seams: dict[str, str]  # each replaced attribute and the hash of what was there
    displaced: dict[str, str] = field(default_factory=dict)  # of those: what upstream's calls come to instead
    faults: int = 0  # of our own code, after each of which the safe fallback was taken
    first_error: str = ""
    stood_down: bool = False

    @property
    def word(self) -> str:
        """One of STATES. Another tool has taken at least one seam of a fix that is displaced."""
        if self.applied and self.displaced:
            return "displaced"
        if self.applied:
            going = "observing" if self.choice == "observe" else "applied"
            return "stood-down" if self.stood_down else going
        if self.answer is None:
            return "off" if self.choice == "off" else "waiting"
        if self.choice == "off" and self.answer.state in (State.NEEDED, State.UNKNOWN):
            return "off"
        return self.answer.state.value

    @property
    def reason(self) -> str:
        return self.answer.reason if self.answer else "its modules have not been imported"

    @property
    def missing(self) -> bool:
        """Whether the fix is needed and not applied."""
        return not self.applied and self.answer is not None and self.answer.state is State.NEEDED

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "choice": self.choice,
            "word": self.word,
            "state": self.answer.state.value if self.answer else None,
            "reason": self.reason,
            "applied": self.applied,
            "seams": self.seams,
            "displaced": self.displaced,
            "faults": self.faults,
            "first_error": self.first_error,
        }


@dataclass(frozen=True)
class Statuses:
    fixes: tuple[FixStatus, ...]
    others: dict[str, str] = field(default_factory=dict)  # seams of other replacements, with the hash of what was there
    others_displaced: dict[str, str] = field(default_factory=dict)

    @property
    def displaced(self) -> dict[str, str]:
        """Of all replacements: the seam, and what upstream's calls come to instead."""
        of_fixes = {name: by for status in self.fixes for name, by in status.displaced.items()}
        return of_fixes | self.others_displaced

    def of(self, fix_id: str) -> FixStatus:
        return next(status for status in self.fixes if status.id == fix_id)

    @property
    def applied(self) -> tuple[str, ...]:
        return tuple(status.id for status in self.fixes if status.applied)

    def line(self) -> str:
        """All fixes by their state, for the log."""
        by_word: dict[str, list[str]] = {}
        for status in self.fixes:
            by_word.setdefault(status.word, []).append(status.id)
        return "; ".join(f"{word}: {', '.join(ids)}" for word, ids in sorted(by_word.items()))


class Registry:
    """Holds what is installed in this process. Every method may be called from any thread; one lock.

    `apply` may be called again whenever more of upstream has been imported: what is applied stays, the others are
    looked at again when more of their triggers are there. Other settings than last time take everything back first.
    """

    def __init__(self, fixes: Iterable[Fix] = ()) -> None:
        self.fixes: Sequence[Fix] = tuple(fixes)
        self.live: Callable[[], Iterable[Any]] = tuple  # the objects of upstream's engines that run here
        self._lock = ForkedLock()
        self._settings = Settings()
        self._answers: dict[str, Answer] = {}
        self._decided_on: dict[str, set[str]] = {}  # the triggers that were there when a fix was decided
        self._installed: list[seam.Installed] = []  # of the fixes
        self._others: list[seam.Installed] = []
        self._unguarded: set[str] = set()  # late replacements that could not be made

    def apply(self, settings: Settings, upstream: Upstream | None = None, *, at_last: bool = False) -> Statuses:
        """Raise ApplyError, or SettingsError for a choice that cannot be honoured, with everything taken back.

        at_last: do not wait for triggers that exist and have not been imported; this start does without them.
        """
        upstream = upstream or Upstream()
        with self._lock():
            if settings != self._settings:
                self._revert_fixes()
                self._settings = settings
            try:
                for fix in self.fixes:
                    if self._is_due(fix, at_last):
                        self._decide(fix, upstream)
            except Exception:
                self._revert_fixes()
                raise
            applied = {installed.by for installed in self._installed}
            for fix in self.fixes:
                if fix.id in applied and settings.choice_of(fix.id) != "observe":
                    self._replace_late(fix, upstream)
            return self.report()

    def install(self, name: str, replacements: Iterable[Replacement]) -> None:
        """Make replacements that belong to no fix, all or none. Other settings do not take them back.

        Those of this name that are there already stay as they are; a module that was loaded again has lost its own.
        """
        with self._lock():
            self._others = [each for each in self._others if each.still_ours()]
            here = {(each.by, each.seam) for each in self._others}
            new: list[seam.Installed] = []
            try:
                for replacement in replacements:
                    if (name, replacement.seam) not in here:
                        new += [seam.install(replacement, name)]
            except Exception:
                for each in reversed(new):
                    each.restore()
                raise
            self._others += new

    def revert(self) -> list[str]:
        """Take back what is still ours, fixes and others, the last first. Returns the seams that another tool has
        replaced since."""
        with self._lock():
            left = self._revert_fixes()
            left += [str(each.seam) for each in reversed(self._others) if not each.restore()]
            self._others.clear()
            return left

    def _revert_fixes(self) -> list[str]:
        with self._lock():
            left = [str(installed.seam) for installed in reversed(self._installed) if not installed.restore()]
            seam.give_back(self._installed)
            for fix in self.fixes:
                fuse.reset(fix.id)
            self._installed.clear()
            self._answers.clear()
            self._decided_on.clear()
            self._unguarded.clear()
        for name in left:
            log.warning("%s was replaced by another tool after us, and is left as it is", name)
        return left

    def loaded(self, module: str) -> None:
        """The body of this module has run. After `importlib.reload` it has new functions and classes, without our
        replacements; the fixes of the old ones are due again."""
        with self._lock():
            here = [each for each in self._installed if each.seam.module == module]
            stale = {each.by for each in here if not each.still_ours()}
            for each in reversed(self._installed):
                if each.by in stale:
                    each.restore()
            self._installed = [each for each in self._installed if each.by not in stale]
            for fix_id in sorted(stale):
                self._decided_on.pop(fix_id, None)
                log.warning("%s was loaded again; fix %s is applied again", module, fix_id)

    def probe(self, settings: Settings, upstream: Upstream) -> Statuses:
        """Report what `apply` would find, without a change. `doctor` uses this on a build at rest."""
        with self._lock():
            answers = {fix.id: _probed(fix, upstream) for fix in self.fixes}
            return self._report(settings, answers)

    def report(self) -> Statuses:
        with self._lock():
            return self._report(self._settings, self._answers)

    def aliases(self) -> list[str]:
        """Names in upstream that still hold a replaced original: calls through them are unguarded."""
        with self._lock():
            return sorted({*seam.aliases(self._installed), *self._unguarded})

    def _decide(self, fix: Fix, upstream: Upstream) -> None:
        answer = self._answers[fix.id] = _probed(fix, upstream)
        choice = self._settings.choice_of(fix.id)
        if answer.state is State.UNKNOWN and choice != "off":
            self._face_unknown(fix, answer, choice)
            if not (choice == "on" and self._settings.force):
                return
        elif answer.state is not State.NEEDED or choice == "off":
            return
        make = fix.replacements
        if choice == "observe" and fix.counting_replacements is not None:
            make = fix.counting_replacements
        try:
            for replacement in make(upstream, self._settings.tuning):
                self._installed.append(seam.install(replacement, fix.id))
        except Exception as error:
            raise ApplyError(
                f"fix {fix.id} is needed and could not be applied, so none is: {described(error)}; "
                f"kvfix.fixes.{fix.id}: off starts without it"
            ) from error

    def _replace_late(self, fix: Fix, upstream: Upstream) -> None:
        """Make the late replacements. The server may be running already, so one that cannot be made is logged and ends
        nothing."""
        here = {installed.seam for installed in self._installed if installed.by == fix.id}
        try:
            new = [each for each in fix.late_replacements(upstream) if each.seam not in here]
        except Exception as error:
            fuse.of(fix.id).fault(error)
            return
        for replacement in new:
            name = f"{replacement.seam.module}.{replacement.seam.path}"
            try:
                self._installed.append(seam.install(replacement, fix.id))
                self._unguarded.discard(name)
            except Exception as error:
                if name not in self._unguarded:
                    log.warning("%s is NOT guarded by fix %s: %s", name, fix.id, described(error))
                self._unguarded.add(name)

    def _face_unknown(self, fix: Fix, answer: Answer, choice: str) -> None:
        if choice != "on":
            log.warning(
                "fix %s is NOT applied, because its probe cannot tell whether it fits: %s", fix.id, answer.reason
            )
        elif self._settings.force:
            log.error("fix %s is FORCED on although its probe cannot tell: %s", fix.id, answer.reason)
        else:
            raise SettingsError(
                f"kvfix.fixes.{fix.id} is on, but its probe cannot tell whether it fits: {answer.reason}; "
                "kvfix.force: true (run --force) applies it all the same"
            )

    def _is_due(self, fix: Fix, at_last: bool) -> bool:
        """Whether a module of the fix has been imported since its decision, and no more are to come."""
        if any(installed.by == fix.id for installed in self._installed):
            return False
        upstream = Upstream()
        there = {name for name in fix.triggers if upstream.module(name) is not None}
        if there <= self._decided_on.get(fix.id, set()):
            return False
        if not at_last and any(exists(name) for name in fix.triggers if name not in there):
            return False
        self._decided_on[fix.id] = there
        return True

    def _report(self, settings: Settings, answers: dict[str, Answer]) -> Statuses:
        seams: dict[str, dict[str, str]] = {}
        for installed in self._installed:
            seams.setdefault(installed.by, {})[str(installed.seam)] = installed.fingerprint
        live = list(self.live())
        displaced: dict[str, dict[str, str]] = {}
        for installed, by in seam.displaced(self._installed, live):
            displaced.setdefault(installed.by, {})[str(installed.seam)] = by
        return Statuses(
            tuple(
                FixStatus(
                    id=fix.id,
                    title=fix.title,
                    choice=settings.choice_of(fix.id),
                    answer=answers.get(fix.id),
                    applied=fix.id in seams,
                    seams=seams.get(fix.id, {}),
                    displaced=displaced.get(fix.id, {}),
                    faults=tried.faults,
                    first_error=tried.first_error,
                    stood_down=tried.blown,
                )
                for fix, tried in ((fix, fuse.of(fix.id)) for fix in self.fixes)
            ),
            others={str(each.seam): each.fingerprint for each in self._others if each.is_current()},
            others_displaced={str(each.seam): by for each, by in seam.displaced(self._others, live)},
        )


def _probed(fix: Fix, upstream: Upstream) -> Answer:
    """The probe's answer. A probe that raises answers *unknown*, so its fix is not applied, and the log says so."""
    try:
        return fix.probe(upstream)
    except Exception as error:
        return Answer(State.UNKNOWN, f"the probe raised {described(error)}")


# process.py gives it the fixes. The offload connector replaces its seams whether the fixes are on or not.
here = Registry()
