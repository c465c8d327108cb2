"""The installed TensorRT-LLM as `doctor` sees it: variant, what each fix would do here, which buffers stay racy.

For these, upstream's source is read, not run: every `x.copy_(owner.buffer, non_blocking=True)` ships memory that an
object keeps, so a later step may refill it before the copy has read it (docs/hazards). The same holds for a kernel that
gets a mapped table, and for a local name of either. Memory that the same function has just allocated is not shared yet.
Whether a buffer is pinned, and whether something else orders its refill, is not visible in the source: these are
candidates, with what guards them.
"""

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trtllm_kvfix.foreign_files import SOURCE_BYTES_MAX, text_of
from trtllm_kvfix.log import described
from trtllm_kvfix.overlay import import_hook, prologue_trim, releases
from trtllm_kvfix.overlay.fix import Fix, State
from trtllm_kvfix.overlay.hook_file import hook_file
from trtllm_kvfix.overlay.hook_loss import BOOTSTRAP, PATH
from trtllm_kvfix.overlay.registry import FixStatus, Registry
from trtllm_kvfix.overlay.upstream import PACKAGE, RESOURCE_MANAGER, Upstream, exists
from trtllm_kvfix.plurals import form, number_of
from trtllm_kvfix.settings import ENV_ENABLED, Settings, environment
from trtllm_kvfix.tools.doctor import server_manager
from trtllm_kvfix.tools.doctor.findings import HOLDS, Lack
from trtllm_kvfix.tools.doctor.server_manager import ServerManager
from trtllm_kvfix.tools.doctor.source_tree import SourceTree

HOOKED = ("persistent", "run")


def examine(settings: Settings, registry: Registry, command: Sequence[str] = ()) -> dict[str, Any]:
    """Plain values; `problems` are reasons for `doctor` to exit with 1. Imports TensorRT-LLM where there is one.
    `command` starts the server."""
    trials = tried(registry.fixes)
    report: dict[str, Any] = {
        "installed": exists(PACKAGE),
        "version": releases.distribution_version(PACKAGE),
        "release": release(releases.distribution_version(PACKAGE)),
        "variant": None,
        "prologue_trim": "",
        "hook": hook_state(settings),
        "manager": None,  # of the server
        "host_offload": "",  # what is wrong with upstream's own host tier
        "fixes": [],
        "lacking": [],  # the problems that are about fixes
        "buffers": [],
        "self_tests": trials,
        "switched_off": [],
        "problems": unfit(trials, settings),
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
    place = getattr(package, "__path__", [package.__file__])[0]
    manager = server_manager.of_server(Path(place), command)
    report["variant"] = upstream.variant()
    report["prologue_trim"] = prologue_trim.mode(upstream)
    report["manager"] = manager.as_dict()
    report["host_offload"] = _of_host_offload(report["version"], settings, manager, command)
    report["fixes"] = described_fixes(registry.fixes, statuses, report["hook"], manager, forced=settings.force)
    report["buffers"] = buffers(package.__file__, registry.fixes, statuses, report["hook"])
    matter = mattering(registry.fixes, statuses, manager)
    report["switched_off"] = switched_off(matter, report["hook"])
    report["lacking"] = problems(matter, report["hook"], forced=settings.force)
    report["problems"] += report["lacking"]
    if not exists(RESOURCE_MANAGER):
        report["problems"] += nothing_to_judge(place, "installation", statuses)
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


def examine_source(
    tree: SourceTree, settings: Settings, registry: Registry, command: Sequence[str] = ()
) -> dict[str, Any]:
    """The same of a tree that is not imported. What a hook does here says nothing about where the tree will run."""
    for name in {name for fix in registry.fixes for name in fix.triggers}:
        tree.module(name)  # a file that cannot be read is reported, even if no probe reaches it
    statuses = registry.probe(settings, tree).fixes
    trials = tried(registry.fixes)
    manager = server_manager.of_server(tree.package, command)
    mattered = mattering(registry.fixes, statuses, manager)
    lacking = [
        *problems(mattered, "run", forced=settings.force),
        *(f"fix {status.id} is needed: {status.reason}" for status in mattered if status.missing),
    ]
    has_managers = tree.module(RESOURCE_MANAGER) is not None or RESOURCE_MANAGER in tree.unreadable
    return {
        "installed": True,
        "version": tree.version(),
        "release": release(tree.version()),
        "variant": tree.variant(),
        "prologue_trim": prologue_trim.mode(tree),
        "hook": "source",
        "self_tests": trials,
        "manager": manager.as_dict(),
        "host_offload": _of_host_offload(tree.version(), settings, manager, command),
        "fixes": described_fixes(registry.fixes, statuses, "source", manager, forced=settings.force),
        "lacking": lacking,
        "buffers": buffers(str(tree.package / "__init__.py"), registry.fixes, statuses, "run"),
        "unreadable": tree.unreadable,
        "switched_off": switched_off(mattered, "run"),
        "problems": [
            *unfit(trials, settings),
            *lacking,
            *(f"{name} cannot be read: {why}" for name, why in tree.unreadable.items()),
            *([] if has_managers else nothing_to_judge(str(tree.package), "checkout", statuses)),
        ],
    }


def _of_host_offload(version: str | None, settings: Settings, manager: ServerManager, command: Sequence[str]) -> str:
    return "" if settings.manager == "native" else server_manager.host_tier_warning(version, manager, command)


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
    return "persistent" if hook_file().is_file() else "none"


def described_fixes(
    fixes: Sequence[Fix], statuses: Sequence[FixStatus], hook: str, manager: ServerManager, *, forced: bool
) -> list[dict[str, Any]]:
    described = []
    for fix, status in zip(fixes, statuses, strict=True):
        needless = manager.needless(fix, status.answer)
        more = {
            "hazard": fix.hazard,
            "upstream": list(fix.upstream),
            "only_for": fix.only_for,
            "only_with": "" if status.answer is None else status.answer.only_with,
            "matters": not needless,
            "lack": None if needless else _lack_word(status, hook, forced=forced),
            "outlook": not_needed(status, needless) if needless else outlook(status, hook),
        }
        described.append(status.as_dict() | more)
    return described


def mattering(fixes: Sequence[Fix], statuses: Sequence[FixStatus], manager: ServerManager) -> list[FixStatus]:
    """Those that could change anything in a server with this manager."""
    return [status for fix, status in zip(fixes, statuses, strict=True) if manager.needs(fix, status.answer)]


def not_needed(status: FixStatus, why: str) -> str:
    needed = status.answer is not None and status.answer.state in (State.NEEDED, State.UNKNOWN)
    return f"not needed {why}" if needed else status.word


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


def lack_of(status: FixStatus, hook: str, *, forced: bool) -> Lack | None:
    if hook != "off" and status.word == State.UNKNOWN.value:
        return None if forced and status.choice == "on" else Lack.UNDECIDED
    if not status.missing:
        return None
    if status.choice == "off" or hook == "off":
        return Lack.SWITCHED_OFF
    return None if hook in HOOKED else Lack.UNHOOKED


def _lack_word(status: FixStatus, hook: str, *, forced: bool) -> str | None:
    lack = lack_of(status, hook, forced=forced)
    return None if lack is None else lack.value


def with_lack(statuses: Sequence[FixStatus], lack: Lack, hook: str, *, forced: bool = False) -> list[FixStatus]:
    return [status for status in statuses if lack_of(status, hook, forced=forced) is lack]


def problems(statuses: Sequence[FixStatus], hook: str, *, forced: bool = False) -> list[str]:
    """Reasons to exit with 1."""
    undecided = with_lack(statuses, Lack.UNDECIDED, hook, forced=forced)
    unhooked = with_lack(statuses, Lack.UNHOOKED, hook, forced=forced)
    return [*map(_undecided, undecided), *([_unhooked(unhooked)] if unhooked else [])]


def _undecided(status: FixStatus) -> str:
    return (
        f"fix {status.id} is not applied, because its probe cannot tell whether it fits: {status.reason}; "
        f"kvfix.fixes.{status.id}: off accepts that"
    )


def _unhooked(statuses: Sequence[FixStatus]) -> str:
    """One remedy for all of them."""
    needed = f"{number_of(len(statuses), 'fix', 'fixes')} {form(len(statuses), 'is', 'are')} needed"
    return (
        f"{needed} and no hook is active ({', '.join(status.id for status in statuses)}): `trtllm-kvfix run -- "
        "COMMAND` starts a server with them, `trtllm-kvfix enable` installs a hook"
    )


def switched_off(statuses: Sequence[FixStatus], hook: str) -> list[str]:
    """Fixes that are needed and that settings switch off. Somebody has decided that, so it is told and no problem."""
    by = f"{ENV_ENABLED} or kvfix.enabled is false" if hook == "off" else ""
    return [
        f"fix {status.id} is needed ({status.reason}) and switched off: {by or f'kvfix.fixes.{status.id} is off'}"
        for status in with_lack(statuses, Lack.SWITCHED_OFF, hook)
    ]


def tried(fixes: Sequence[Fix]) -> dict[str, str]:
    """For each fix, HOLDS, or the reason why its mechanism does not work on this machine."""
    return {fix.id: _trial(fix) for fix in fixes}


def unfit(trials: Mapping[str, str], settings: Settings) -> list[str]:
    """Reasons to exit with 1 that do not depend on TensorRT-LLM. A fix that is switched off does no harm."""
    return [
        f"fix {fix_id} fails its self-test: {found}"
        for fix_id, found in trials.items()
        if found != HOLDS and settings.enabled and settings.choice_of(fix_id) != "off"
    ]


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
    if status.answer.state is State.NEEDED and status.answer.only_with:
        return True  # upstream's own does, in the other servers
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


METHODS = ("copy_", "to", "cuda")
# By upstream's naming: sources that are on the device, so copies from them do not read host memory; kernels that read
# host memory when they run; and calls that return a persistent buffer.
KERNELS = ("copy_batch_block_offsets_to_device", "block_copy")
LENDERS = {"get_copy_index": "copy_index"}
ON_HOST = re.compile(r"host|pinned|_cpu$|^cpu_|copy_index")
ON_DEVICE = re.compile(r"(_cuda|_device|_gpu|_d)$|^(cuda|device|_precomputed)_|_device_")


@dataclass(frozen=True)
class Buffer:
    file: str  # relative to the package
    line: int
    name: str

    def guards(self, fixes: Iterable[Fix]) -> tuple[str, ...]:
        """The fixes that keep the buffer safe, in their order: staging first, then the fence before the next step."""
        return tuple(
            fix.id
            for fix in fixes
            if any(re.search(each.buffer, self.name) and re.search(each.file, self.file) for each in fix.keeps_safe)
        )


def candidates(package: Path) -> list[Buffer]:
    """All of them in the folder of a package, one for each buffer and file."""
    found: dict[tuple[str, str], Buffer] = {}
    for file in sorted(package.glob("_torch/**/*.py")):
        try:
            text = text_of(file, SOURCE_BYTES_MAX, errors="replace")
        except (OSError, ValueError):
            continue  # an editor's lock, which is a link to nowhere, a folder or a pipe of that name, or no source
        if "non_blocking=True" not in text and not any(kernel in text for kernel in KERNELS):
            continue
        where = file.relative_to(package).as_posix()
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue  # written for a later Python than this one, or nested too deeply for it
        for line, name in _shipped(tree):
            found.setdefault((where, name), Buffer(where, line, name))
    return list(found.values())


def _shipped(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _shipped_in(function)


def _shipped_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    fresh: set[str] = set()  # attributes that this function has given memory of their own
    aliases: dict[str, str] = {}  # local names for buffers that an object keeps
    for node in _in_order(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _note(node.targets[0], node.value, fresh, aliases)
        elif isinstance(node, ast.Call):
            for source in _sources(node):
                name = _kept(source, aliases)
                if name is not None and name not in fresh and not ON_DEVICE.search(name):
                    yield node.lineno, name


def _in_order(function: ast.AST) -> list[ast.AST]:
    """Nodes in the order of the text; what is nested in another function is that one's."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found += [child, *_in_order(child)]
    return sorted(found, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))


def _note(target: ast.expr, value: ast.expr, fresh: set[str], aliases: dict[str, str]) -> None:
    if isinstance(target, ast.Attribute) and isinstance(value, ast.Call):
        fresh.add(target.attr)
    elif isinstance(target, ast.Name):
        aliases.pop(target.id, None)
        called = value.func if isinstance(value, ast.Call) else None
        lent = LENDERS.get(called.attr) if isinstance(called, ast.Attribute) else None
        name = lent or _kept(value, aliases)
        if name is not None:
            aliases[target.id] = name


def _sources(call: ast.Call) -> list[ast.expr]:
    """Return the arguments that the device reads after the call has returned."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called in KERNELS:
        return [each for each in call.args if ON_HOST.search(ast.unparse(each)) or isinstance(each, ast.Name)]
    if called not in METHODS or not isinstance(call.func, ast.Attribute):
        return []
    if not any(each.arg == "non_blocking" and _is_true(each.value) for each in call.keywords):
        return []
    return [call.args[0] if called == "copy_" and call.args else call.func.value]


def _kept(source: ast.expr, aliases: Mapping[str, str]) -> str | None:
    """`self.buffer[rows, :n]` and `metadata.owner.buffer` keep `buffer`; a call in between allocates its own memory."""
    while isinstance(source, ast.Subscript):
        source = source.value
    if isinstance(source, ast.Name):
        return aliases.get(source.id)
    if not isinstance(source, ast.Attribute):
        return None
    owner = source.value
    while isinstance(owner, ast.Attribute):
        if ON_DEVICE.search(owner.attr):
            return None
        owner = owner.value
    return source.attr if isinstance(owner, ast.Name) and not ON_DEVICE.search(owner.id) else None


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
