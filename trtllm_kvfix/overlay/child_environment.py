"""Settings for the processes that this one starts, in variables that begin with TRTLLM: upstream sends those on.

Workers that MPI spawns start with neither our variables nor a way to our hook, and an initializer brings them both.
mpi4py runs it in every worker before its first task, after it has set `sys.path` and the variables that upstream sends,
which are those that begin with TRTLLM or TLLM. A worker that cannot run it breaks the pool: no start without the hook.
"""

import os
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trtllm_kvfix.overlay import import_hook
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.hook_loss import PATH
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.settings import (
    ENV_ENABLED,
    ENV_JOB,
    ENV_PREFIX,
    Settings,
    as_variables,
    environment,
    export,
    unset,
)

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation


class _Exported(NamedTuple):
    value: str
    before: str | None  # what the user had there


def carried() -> dict[str, str]:
    return {name: value for name, value in environment().items() if name.startswith(ENV_PREFIX)}


def job_here() -> str:
    """The name of this start, which is made where nobody has named it."""
    return environment().get(ENV_JOB) or f"{os.uname().nodename}-{os.getpid()}"


class ChildEnvironment:
    """What we have put into the environment of this process, so that we do not later take it for the user's."""

    def __init__(self) -> None:
        self._exported: dict[str, _Exported] = {}
        self._said: dict[str, str] = {}
        self._path: _Exported | None = None

    def given(self, said: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment as the user made it, overridden by what the program's own code has said: `said`, or what it
        had said when settings were carried last. That comes before files, as a command line would."""
        return {**self._of_the_user(), **(self._said if said is None else said)}

    def carry(self, settings: Settings, job: str, said: Mapping[str, str] | None = None) -> None:
        """Put settings that hold where child processes find them. Those that fail are never here, so nothing has to be
        undone."""
        if said is not None:
            self._said = dict(said)
        self._take_back()
        before = environment()
        new = {**as_variables(settings), ENV_ENABLED: "true", ENV_JOB: job}
        self._exported = {name: _Exported(value, before.get(name)) for name, value in new.items()}
        export(new)

    def lead(self, path: str) -> None:
        """Give child processes this path of Python's, as `run` does, until `stop`."""
        before = environment().get(PATH)
        if path != before:
            self._path = _Exported(path, before)
            export({PATH: path})

    def stop(self) -> None:
        """Child processes from now on run without the fixes."""
        self._said = {}
        self._take_back()
        if self._path is not None and environment().get(PATH) == self._path.value:  # else somebody has set it since
            unset([PATH])
            export({} if self._path.before is None else {PATH: self._path.before})
        self._path = None
        export({ENV_ENABLED: "false"})

    def _of_the_user(self) -> dict[str, str]:
        found = environment()
        for name, ours in self._exported.items():
            if found.get(name) != ours.value:
                continue  # somebody has set it since
            if ours.before is None:
                del found[name]
            else:
                found[name] = ours.before
        return found

    def _take_back(self) -> None:
        user = {name: value for name, value in self._of_the_user().items() if name in self._exported}
        unset(self._exported)
        self._exported = {}
        export(user)


TRIGGER = "tensorrt_llm.llmapi.mpi_session"
FUTURES = "mpi4py.futures"


def replacements(active: "Activation") -> list[Replacement]:  # noqa: ARG001  one interface
    if not Upstream().has(FUTURES, "MPIPoolExecutor"):
        return []
    return [Replacement(Seam(FUTURES, "MPIPoolExecutor.__init__"), with_initializer)]


def with_initializer(init: Callable[..., None]) -> Callable[..., None]:
    def __init__(  # noqa: N807
        self: Any, max_workers: int | None = None, initializer: Any = None, initargs: Any = (), **kwargs: Any
    ) -> None:
        sent = (carried(), initializer, initargs)
        init(self, max_workers, initializer=start_worker, initargs=sent, **kwargs)

    return __init__


def start_worker(variables: dict[str, str], initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    """This runs in the worker. The server's main module, and upstream with it, may have been imported already."""
    export(variables)
    try:
        import_hook.begin()
    except Exception:
        traceback.print_exc()  # mpi4py says only that an initializer failed
        raise
    if initializer is not None:
        initializer(*initargs)
