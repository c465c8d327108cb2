"""All five of upstream's newest parts of V2 in one attack: its loops, scheduler, V2 manager, connector manager, and the
runtime below them. The model engine, the device, and both sides of the connector are ours.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from integration.upstream import newest_connector, newest_loops, newest_manager, newest_scheduler
from integration.upstream.newest_connector import ConnectedAttack, Running, Side, connect
from integration.upstream.v2_driver import FOLDER, NAME, Timeline, runtime_of
from integration.upstream.v2_levels import Maker
from tests.fixes.applied import applied
from tests.torture.engines import SEED
from tests.torture.test_engines import faults
from tests.torture.v2_attack import Way, attacked

WORKERS = 4  # of the connector, which load in the background


@dataclass(frozen=True)
class Excerpts:
    """Nothing of it runs where a part is missing."""

    folder: Path | None

    def __bool__(self) -> bool:
        runtime = self.folder is not None and (self.folder / "v2-runtime" / FOLDER).exists()
        return runtime and all([self.loops, self.manager, self.connector, self.scheduler])

    @property
    def tree(self) -> Path:
        assert self.folder is not None
        return self.folder / "v2-runtime"

    @property
    def loops(self) -> str:
        return newest_loops.source_in(self.folder)

    @property
    def manager(self) -> str:
        return newest_manager.source_in(self.folder)

    @property
    def connector(self) -> newest_connector.Source:
        return newest_connector.source_in(self.folder)

    @property
    def scheduler(self) -> str:
        return newest_scheduler.source_in(self.folder)


@dataclass
class OnStreams(Side):
    """Each load goes on a stream of its own, behind what stood in upstream's when it started. The batch waits for one
    that comes with it. One in the background writes at any time until its worker finds that it has."""

    written: dict[int, int] = field(default_factory=dict)  # the event of each that runs in the background
    streams: list[int] = field(init=False)  # the last is for loads that come with a batch

    def __post_init__(self) -> None:
        self.streams = [self._order.new() for _ in range(WORKERS + 1)]

    def start(self, stream: Any) -> None:
        for each in self.begun:
            event = self._enqueue(each, stream.cuda_stream)
            if each.polls:
                self.running.append(each)
                self.written[each.key] = event
            else:
                self._order.wait(stream.cuda_stream, event)
                self.finished.append(each.key)
        self.begun = []

    def _enqueue(self, each: Running, behind: int) -> int:
        order, own = self._order, self.streams[each.key % WORKERS if each.polls else WORKERS]
        started, written = order.new(), order.new()
        order.record(started, behind)
        order.wait(own, started)
        order.enqueue(own, partial(self.attack.contents.carry_out, each.load), lambda: not each.polls)
        order.record(written, own)
        return written

    def poll(self) -> list[int]:
        for each in self.running:
            each.polls = max(0, each.polls - 1)
        self._order.step()  # as whoever asks about an event lets it
        over = [each.key for each in self.running if self._order.is_done(self.written[each.key])]
        self.running = [each for each in self.running if each.key not in over]
        for key in over:
            del self.written[key]
        found, self.finished = self.finished + over, []
        return found

    @property
    def _order(self) -> Timeline:
        found: Timeline = self.attack.manager.impl.levels.order
        return found


class WholeAttack(ConnectedAttack):
    """Upstream's loop has a stream, on which it starts loads, and its steps have one. Each step stands behind what the
    loop's stream has, and what comes there next stands behind the step."""

    _of_loop: int

    def _drawn(self) -> Any:
        """The runtime itself fails in some commits behind a prompt that is shorter than a block."""
        while (found := super()._drawn()).prompt_len <= self.manager.tokens_per_block:
            pass
        return found

    def _fetch_new_requests(self, *, idle: bool) -> None:
        self._of_loop = self.server.tensors.current_stream().cuda_stream
        super()._fetch_new_requests(idle=idle)

    def _forward_step(self, inputs: Any, metadata: Any) -> Any:
        of_steps = self.manager._stream.cuda_stream
        self._follow(of_steps, self._of_loop)
        result = super()._forward_step(inputs, metadata)
        self._follow(self._of_loop, of_steps)
        return result

    def _follow(self, stream: int, other: int) -> None:
        order = self.manager.impl.levels.order
        event = order.new()
        order.record(event, other)
        order.wait(stream, event)


@contextmanager
def unchecked() -> Iterator[None]:
    """The runtime checks each cache when it grows, if it is told to; servers do not tell it. The check does not know of
    prefixes that pass a window behind what is reused."""
    cache = import_module(f"{NAME}._core._kv_cache")._KVCache
    with mock.patch.object(cache, "_check_sanity", return_value=True):
        yield


@contextmanager
def keeping_blocks() -> Iterator[None]:
    """The runtime takes a block out of its tree when its page of a window goes, though a cache holds the rest and
    commits behind it later. Here such a block stays."""
    tree = import_module(f"{NAME}._block_radix_tree")
    theirs = tree.Block.clear_stale_blocks_after_page_unlink

    def clear(block: Any, group: int, cycle: Any) -> None:
        if cycle.window_size is None:
            theirs(block, group, cycle)
            return
        while isinstance(block, tree.Block) and block.storage[group] is None and not block.next and not _is_held(block):
            before = block._prev()
            if before is None:
                return
            tree.detach_next(before, block.key)
            block = before

    with mock.patch.object(tree.Block, "clear_stale_blocks_after_page_unlink", staticmethod(clear)):
        yield


def _is_held(block: Any) -> bool:
    pages = [page and page() for page in block.storage]
    return any(page is not None and page.status.name != "DROPPABLE" for page in pages)


@contextmanager
def whole(
    excerpts: Excerpts, way: Way, fixes: Sequence[str], timeline: type[Timeline] = Timeline,
    kind: type[WholeAttack] = WholeAttack, *, checks_caches: bool = False, loses_blocks: bool = False,
    **options: Any,
) -> Iterator[tuple[WholeAttack, Callable[[], list[str]]]]:  # fmt: skip
    """Inside the stand-in, in a process that ends before anything of upstream's does. Also tells the faults of
    ours. `checks_caches`, `loses_blocks`: the runtime does what ends most of these runs."""
    maker = Maker(timeline(Random(1)), has_host=False)
    with (
        runtime_of(excerpts.tree, maker.order, maker.copied) as maker.module,
        nullcontext() if checks_caches else unchecked(),
        nullcontext() if loses_blocks else keeping_blocks(),
        newest_loops.newest_loops(excerpts.loops),
        newest_manager.newest_manager(excerpts.manager, connected=True),
        newest_connector.newest_connector(excerpts.connector),
        applied(fixes) as registry,
        attacked(way, SEED, maker, kind, **options) as attack,
        newest_scheduler.newest_scheduler(excerpts.scheduler) as scheduler,
    ):
        assert isinstance(attack, WholeAttack)
        newest_loops.let_it_rebalance(attack)
        connect(attack, OnStreams)
        newest_scheduler.let_it_schedule(attack, scheduler)
        yield attack, partial(faults, registry)
