"""The installed TensorRT-LLM as `doctor` sees it: variant, what each fix would do here, which buffers stay racy."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from trtllm_kvfix.log import described
from trtllm_kvfix.overlay import import_hook, releases
from trtllm_kvfix.overlay.fix import Fix, State
from trtllm_kvfix.overlay.hook_file import hook_file
from trtllm_kvfix.overlay.hook_loss import BOOTSTRAP, PATH
from trtllm_kvfix.overlay.registry import FixStatus, Registry
from trtllm_kvfix.overlay.upstream import PACKAGE, RESOURCE_MANAGER, Upstream, exists
from trtllm_kvfix.plurals import form, number_of
from trtllm_kvfix.settings import ENV_ENABLED, Settings, environment
from trtllm_kvfix.tools.doctor.buffers import candidates
from trtllm_kvfix.tools.doctor.source_tree import SourceTree

HOOKED = ("persistent", "run")
HOLDS = "holds"


def examine(settings: Settings, registry: Registry) -> dict[str, Any]:
    """Plain values; `problems` are reasons for `doctor` to exit with 1. Imports TensorRT-LLM where there is one."""
    trials = tried(registry.fixes)
    report: dict[str, Any] = {
        "installed": exists(PACKAGE),
        "version": releases.distribution_version(PACKAGE),
        "release": release(releases.distribution_version(PACKAGE)),
        "variant": None,
        "hook": hook_state(settings),
        "fixes": [],
        "buffers": [],
        "self_tests": trials,
        "problems": unfit(trials),
    }
    if not report["installed"]:
        report["problems"].append(
            f"TensorRT-LLM is not installed in this Python ({sys.executable}); usual cause: another environment runs "
            "the server. Run doctor with its Python: `/path/to/python -m trtllm_kvfix doctor`"
        )
        return report
    import_hook.remove()  # the fixes of this process would stand between the probes and upstream
    with output_to_stderr():
        if broken := import_upstream():
            report["problems"].append(broken)
            return report
        package = sys.modules[PACKAGE]
        upstream = Upstream(may_import=True)
        statuses = registry.probe(settings, upstream).fixes
    report["variant"] = upstream.variant()
    report["fixes"] = described_fixes(registry.fixes, statuses, report["hook"])
    report["buffers"] = buffers(package.__file__, registry.fixes, statuses, report["hook"])
    report["problems"] += problems(statuses, report["hook"], forced=settings.force)
    if not exists(RESOURCE_MANAGER):
        report["problems"] += nothing_to_judge(
            getattr(package, "__path__", [package.__file__])[0], "installation", statuses
        )
    return report


def import_upstream() -> str:
    """Its managers, too: to probes, those that cannot be imported need nothing. Returns why one cannot be, or ""."""
    for name in (PACKAGE, RESOURCE_MANAGER):
        try:
            if exists(name):
                import_module(name)
        except (Exception, SystemExit) as error:  # some module of a broken installation may end its program
            return f"{name} cannot be imported: {described(error)}"
    return ""


def examine_source(tree: SourceTree, settings: Settings, registry: Registry) -> dict[str, Any]:
    """The same of a tree that is not imported. What a hook does here says nothing about where the tree will run."""
    for name in {name for fix in registry.fixes for name in fix.triggers}:
        tree.module(name)  # a file that cannot be read is reported, even if no probe reaches it
    statuses = registry.probe(settings, tree).fixes
    trials = tried(registry.fixes)
    has_managers = tree.module(RESOURCE_MANAGER) is not None or RESOURCE_MANAGER in tree.unreadable
    return {
        "installed": True,
        "version": tree.version(),
        "release": release(tree.version()),
        "variant": tree.variant(),
        "hook": "source",
        "self_tests": trials,
        "fixes": described_fixes(registry.fixes, statuses, "source"),
        "buffers": buffers(str(tree.package / "__init__.py"), registry.fixes, statuses, "run"),
        "unreadable": tree.unreadable,
        "problems": [
            *unfit(trials),
            *problems(statuses, "run", forced=settings.force),
            *(f"fix {status.id} is needed: {status.reason}" for status in statuses if status.missing),
            *(f"{name} cannot be read: {why}" for name, why in tree.unreadable.items()),
            *([] if has_managers else nothing_to_judge(str(tree.package), "checkout", statuses)),
        ],
    }


def nothing_to_judge(place: str, kind: str, statuses: Sequence[FixStatus]) -> Iterator[str]:
    """Without the managers no probe finds anything to fix, which must not look like a build that needs nothing."""
    if all(status.word == State.NOT_APPLICABLE.value for status in statuses):
        yield (
            f"{place} has no {RESOURCE_MANAGER}, so no probe says anything about it; usual causes: an incomplete "
            f"{kind}, or a release without the PyTorch backend"
        )


def release(version: str | None) -> dict[str, Any] | None:
    """Describe the release by its number. The build may contain more, and that counts."""
    found = releases.of(version)
    return None if found is None else {"variants": list(found.variants), "why": found.why}


def hook_state(settings: Settings) -> str:
    """Return the way in which fixes reach a process that is started from here as this one was."""
    if not settings.enabled:
        return "off"
    if str(BOOTSTRAP) in environment().get(PATH, "").split(os.pathsep):
        return "run"
    return "persistent" if hook_file().exists() else "none"


def described_fixes(fixes: Sequence[Fix], statuses: Sequence[FixStatus], hook: str) -> list[dict[str, Any]]:
    return [
        status.as_dict() | {"hazard": fix.hazard, "upstream": list(fix.upstream), "outlook": outlook(status, hook)}
        for fix, status in zip(fixes, statuses, strict=True)
    ]


def outlook(status: FixStatus, hook: str) -> str:
    """Predict the state of a fix in a server that is started from here."""
    if status.answer is None or status.answer.state is not State.NEEDED:
        return status.word
    if status.choice == "off" or hook == "off":
        return "needed, switched off"
    if status.choice == "observe":
        return "needed, only observed"
    if hook == "source":
        return "needed, `run` applies it"
    return "needed, will be applied" if hook in HOOKED else "needed, no hook is installed"


def problems(statuses: Sequence[FixStatus], hook: str, *, forced: bool = False) -> list[str]:
    """Reasons to exit with 1. A remedy that several fixes share is named once."""
    found = []
    for status in statuses:
        if status.word == State.UNKNOWN.value and not (forced and status.choice == "on"):
            off = f"kvfix.fixes.{status.id}: off accepts that"
            found.append(
                f"fix {status.id} is not applied, because its probe cannot tell whether it fits: {status.reason}; {off}"
            )
        elif status.missing and status.choice == "off":
            found.append(f"fix {status.id} is needed ({status.reason}) and switched off")
    unhooked = [status.id for status in statuses if status.missing and status.choice != "off"]
    if unhooked and hook not in HOOKED:
        way = (
            "`trtllm-kvfix run -- COMMAND` starts a server with them, `trtllm-kvfix enable` installs a hook"
            if hook == "none"
            else f"{ENV_ENABLED} or kvfix.enabled is false; set it to true"
        )
        needed = f"{number_of(len(unhooked), 'fix', 'fixes')} {form(len(unhooked), 'is', 'are')} needed"
        found.append(f"{needed} and no hook is active ({', '.join(unhooked)}): {way}")
    return found


def tried(fixes: Sequence[Fix]) -> dict[str, str]:
    """For each fix, HOLDS, or the reason why its mechanism does not work on this machine."""
    return {fix.id: _trial(fix) for fix in fixes}


def unfit(trials: Mapping[str, str]) -> list[str]:
    """Reasons to exit with 1 that do not depend on TensorRT-LLM."""
    return [f"fix {fix_id} fails its self-test: {found}" for fix_id, found in trials.items() if found != HOLDS]


def _trial(fix: Fix) -> str:
    try:
        fix.self_test()
    except Exception as error:
        return described(error)
    return HOLDS


def buffers(
    package_file: str | None, fixes: Sequence[Fix], statuses: tuple[FixStatus, ...], hook: str
) -> list[dict[str, Any]]:
    """Each candidate and its guard: a fix that stages it, the fence before the next step (ours, upstream's), None."""
    if package_file is None:
        return []
    guards = {status.id for status in statuses if _guards(status, hook)}
    return [
        {
            "file": each.file,
            "line": each.line,
            "name": each.name,
            "guard": next((guard for guard in each.guards(fixes) if guard in guards), None),
        }
        for each in candidates(Path(package_file).parent)
    ]


def _guards(status: FixStatus, hook: str) -> bool:
    if status.answer is None:
        return False
    if status.answer.state is State.FIXED_UPSTREAM:
        return True
    return status.answer.state is State.NEEDED and status.choice not in ("off", "observe") and hook in HOOKED


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Upstream greets on stdout, some of it from C++; the report is to have stdout to itself."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
