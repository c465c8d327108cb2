"""Upstream's own V2 runtime below the rig's V2 manager, where its files are there.

Its copies and the steps go by streams and events, as in the attack. They run as late as these allow.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from integration.upstream.v2_compared import Theirs
from integration.upstream.v2_driver import FOLDER, NAME, Timeline, runtime_of
from integration.upstream.v2_levels import Copies
from integration.upstream.v2_pages import LifeCycle, Pool, first_new_block
from integration.upstream.v2_runtime import BAD_PAGE, Runtime

BESIDE_TREES = "v2-runtime"
UPSTREAMS = "upstream's"
# What the newest manager calls on a cache, and an older runtime has not: attribution of reuse, in statistics.
STATISTICS = ("drop_cached_token_attribution", "drop_partial_block_cached_token_attribution")


def root_of_runtime(tree: Path) -> Path:
    """A checkout, or the folder that has it beside the trees of excerpts."""
    for root in (tree, tree.parent.parent / BESIDE_TREES):
        if (root / FOLDER / "_core").is_dir():
            return root
    raise CannotRun("its files are not there")


def runtime_for(tree: Any, shape: Any, stream: int) -> Any:
    """Upstream's where that can be, else ours. The tree keeps which one it is, and why. `stream`: of the steps."""
    try:
        runtime = TheirRuntime(tree.root, shape, stream)
        tree.v2_runtime = UPSTREAMS
        return runtime
    except CannotRun as error:
        tree.v2_runtime = f"ours, since {error}"
    windows = [None if window >= shape.max_seq_len else window for window in shape.windows]
    pools = [Pool(window, shape.blocks, shape.host_blocks) for window in shape.windows]
    return Runtime(shape.tokens_per_block, [LifeCycle(each) for each in windows], pools)


class CannotRun(Exception):
    """Why upstream's does not."""


class CopiesLast(Timeline):
    """While steps can run, no copy does. Of the copies, those of the stream that has been used first run first."""

    def __init__(self, of_steps: int) -> None:
        super().__init__(Random(1))
        self._of_steps = of_steps

    def _chosen(self, can: list[int]) -> int:
        return self._of_steps if self._of_steps in can else can[0]


class TheirRuntime(Copies):
    """The part of the runtime's manager that upstream's manager asks for, and the questions of a scenario to the books.
    A process has one, and ends with it."""

    ordered: Callable[[int], Timeline] = CopiesLast

    def __init__(self, tree: Path, shape: Any, stream: int) -> None:
        root = root_of_runtime(tree)
        if len(set(shape.windows)) < len(shape.windows):
            raise CannotRun("it keeps layers that slide alike in one group")
        # One that is longer than any sequence never slides, and its layers have a group of their own.
        windows = [None if window == shape.max_seq_len else window for window in shape.windows]
        self._windows, self.tokens_per_block = shape.windows, shape.tokens_per_block
        self._cycles = [LifeCycle(window) for window in windows]
        self.order = type(self).ordered(stream)
        self._modules = ExitStack()
        try:
            module = self._modules.enter_context(runtime_of(root, self.order, self.copied))
            for name, method in _for_servers().items():
                setattr(import_module(f"{NAME}._core._kv_cache")._KVCache, name, method)
            theirs = Theirs(module, shape.blocks, shape.host_blocks, windows, shape.tokens_per_block)
        except Exception as error:  # of a checkout whose runtime wants more than the doubles have
            self._modules.close()
            raise CannotRun(f"it cannot be set up: {type(error).__name__}: {error}") from error
        self._scope, self._runtime = module.ReuseScope, theirs.runtime
        self._storage = self._runtime._storage
        self.caches: dict[int, Any] = {}  # by request; the manager's own
        self.pools = [SimpleNamespace(window=window, slots=shape.blocks) for window in shape.windows]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def create_kv_cache(
        self, scope: Sequence[Any], tokens: Sequence[int] | None, id: int | None = None, **_statistics: Any
    ) -> Any:
        return self._runtime.create_kv_cache(self._scope(*scope), tokens, id)

    def probe_reuse(self, scope: Sequence[Any], tokens: Sequence[int]) -> int:
        return int(self._runtime.probe_reuse(self._scope(*scope), tokens))

    def probe_first_new_block_key(self, scope: Sequence[Any], tokens: Sequence[int]) -> object:
        return first_new_block(scope, tokens, self.probe_reuse(scope, tokens), self.tokens_per_block)

    @property
    def max_util_for_resume(self) -> float:
        return float(self._runtime._init_config.max_util_for_resume)

    @max_util_for_resume.setter
    def max_util_for_resume(self, share: float) -> None:
        self._runtime._init_config.max_util_for_resume = share

    def begin(self, move: Callable[[str, int, int, int], None], wait: Callable[[], object]) -> None:
        super().begin(lambda kind, group, *slots: move(kind, self._windows[group], *slots), wait)

    def witness_take_transfers(self) -> list[tuple[str, int, int, int, tuple[int, ...]]]:
        return []  # they are on streams of their own

    def witness_slots(self, request_id: int, window: int) -> list[list[int]]:
        """A page that the window has passed may be held, and lie in the host tier, but no step reads it."""
        group = self._windows.index(window)
        cache = self.caches[request_id]
        found = [int(page) for page in cache.get_aggregated_page_indices(group)]
        passed = self._cycles[group].get_stale_range(cache.history_length, self.tokens_per_block).end
        return [[BAD_PAGE] * min(len(found), passed) + found[passed:]]

    def witness_calls(self) -> list[tuple[str, str]]:
        return []

    def witness_free(self, window: int) -> int:
        """What nobody has. A cache that is suspended has its pages, too, though they may leave the device."""
        group = self._windows.index(window)
        all_pages = self._storage.get_statistics(0)[group]
        kept = (each.get_aggregated_page_indices(group) for each in self.caches.values() if not each.is_active)
        held = sum(page != BAD_PAGE for pages in kept for page in pages)
        return int(all_pages.total - all_pages.unavailable - held)


def _for_servers() -> dict[str, Callable[..., Any]]:
    """The runtime checks each cache when it grows, if it is told to; servers do not tell it."""
    return {"_check_sanity": lambda *_: True} | dict.fromkeys(STATISTICS, lambda *_: None)
