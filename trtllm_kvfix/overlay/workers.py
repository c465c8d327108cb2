"""Workers that MPI spawns start with neither our variables nor a way to our hook; an initializer brings them both.

mpi4py runs it in every worker before its first task, after it has set `sys.path` and the variables that upstream sends,
which are those that begin with TRTLLM or TLLM. A worker that cannot run it breaks the pool: no start without the hook.
"""

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.overlay.child_environment import carried
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.settings import export

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation

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
        init(self, max_workers, initializer=start, initargs=sent, **kwargs)

    return __init__


def start(variables: dict[str, str], initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    """In the worker, where upstream may have been imported already, with the module that the server was started by."""
    from trtllm_kvfix import process  # noqa: PLC0415  the one way up: this runs in another process

    export(variables)
    try:
        process.begin()
    except Exception:
        traceback.print_exc()  # mpi4py says only that an initializer failed
        raise
    if initializer is not None:
        initializer(*initargs)
