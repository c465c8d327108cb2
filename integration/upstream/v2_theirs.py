"""Upstream's own V2 runtime below the rig's V2 manager, where its files are there.

Its copies are announced in the order in which it makes them, as those of our runtime are. By streams and events they
run under the attack alone (v2_levels.py).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from integration.upstream.v2_compared import Theirs
from integration.upstream.v2_driver import FOLDER, NAME, Ready, Timeline, Work, runtime_of
from integration.upstream.v2_levels import slots_copied
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


def runtime_for(tree: Any, shape: Any) -> Any:
    """Upstream's where that can be, else ours. The tree keeps which one it is, and why."""
    windows = [None if window >= shape.max_seq_len else window for window in shape.windows]
    try:
        runtime = TheirRuntime(tree.root, windows, shape)
        tree.v2_runtime = UPSTREAMS
        return runtime
    except CannotRun as error:
        tree.v2_runtime = f"ours, since {error}"
    pools = [Pool(window, shape.blocks, shape.host_blocks) for window in shape.windows]
    return Runtime(shape.tokens_per_block, [LifeCycle(each) for each in windows], pools)


class CannotRun(Exception):
    """Why upstream's does not."""


class AtOnce(Timeline):
    """Whatever is enqueued runs, so nobody waits."""

    def enqueue(self, stream: int, run: Work, ready: Ready = lambda: True) -> None:
        assert ready(), f"stream {stream} waits for what has not been recorded"
        run()


class TheirRuntime:
    """The part of the runtime's manager that upstream's manager asks for, and the questions of a scenario to the books.
    A process has one, and ends with it."""

    def __init__(self, tree: Path, windows: Sequence[int | None], shape: Any) -> None:
        root = root_of_runtime(tree)
        if len(set(windows)) < len(windows):
            raise CannotRun("it keeps layers that slide alike in one group")
        self._windows, self.tokens_per_block = shape.windows, shape.tokens_per_block
        self._cycles = [LifeCycle(window) for window in windows]
        self._moves: list[tuple[str, int, int, int]] = []
        self._modules = ExitStack()
        try:
            module = self._modules.enter_context(runtime_of(root, AtOnce(Random(1)), self._copied))
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

    def _copied(self, kind: str, source: int, target: int) -> None:
        what, group, *slots = slots_copied(self._storage, kind, source, target)
        self._moves.append((what, self._windows[group], *slots))

    def witness_take_transfers(self) -> list[tuple[str, int, int, int, tuple[int, ...]]]:
        found, self._moves = self._moves, []
        return [(*move, ()) for move in found]

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
