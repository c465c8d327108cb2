"""The runtime under the V2 manager: pages of each layer group, prefixes that prompts share, and the rows of its table.

Ours, and as strict as upstream's: history never shrinks and capacity covers it, only an active cache grows or commits,
a suspended one has let go of its row and its pages may leave the device, one that is closed writes BAD_PAGE into its
row. Where two commit the same block, the second takes the pages of the first. There are no beams, no scratch pages and
no recurrent states. A part of a block is shared on demand alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from integration.upstream.v2_pages import (
    Block,
    LifeCycle,
    OutOfPages,
    Page,
    Pool,
    Range,
    Tree,
    first_new_block,
    lock_all,
    make_room,
)

BAD_PAGE = -1


@dataclass
class Runtime:
    """The part of the runtime's manager that upstream's manager asks for. One layer in each group."""

    tokens_per_block: int
    cycles: list[LifeCycle]
    pools: list[Pool]
    tree: Tree = field(default_factory=dict)
    caches: dict[int, "Cache"] = field(default_factory=dict)  # by request; the manager's own
    shares_parts: bool = False  # of blocks, by a copy
    order: ClassVar[None] = None  # its copies are made in the order in which it announces them
    max_util_for_resume: float = 0.97  # upstream's default

    def __post_init__(self) -> None:
        for cycle, pool in zip(self.cycles, self.pools, strict=True):
            pool.is_whole = cycle.window_size is None

    @property
    def layer_grouping(self) -> list[list[int]]:
        return [[group] for group in range(len(self.pools))]

    def create_kv_cache(self, scope: Any, tokens: Sequence[int] | None, id: int | None = None, **_: Any) -> "Cache":
        del id
        return Cache(self, scope, tokens)

    def probe_reuse(self, scope: Any, tokens: Sequence[int]) -> int:
        whole = self.match(scope, tokens)
        return len(whole) * self.tokens_per_block + self.part(scope, tokens, whole)[1]

    def probe_first_new_block_key(self, scope: Any, tokens: Sequence[int]) -> object:
        return first_new_block(scope, tokens, self.probe_reuse(scope, tokens), self.tokens_per_block)

    def mark_stats_excluded(self, request_id: int) -> None:
        pass

    clear_stats_excluded = mark_stats_excluded

    def match(self, scope: Any, tokens: Sequence[int]) -> list[Block]:
        """The longest prefix whose blocks are all there, as far as the groups still read them."""
        size = self.tokens_per_block
        found = []
        for end in range(size, len(tokens) + 1, size):
            block = self.tree.get((scope, tuple(tokens[:end])))
            if block is None:
                break
            found.append(block)
        while found and not self._is_usable(found, len(found) * size):
            found.pop()
        return found

    def part(self, scope: Any, tokens: Sequence[int], whole: list[Block]) -> tuple[Block | None, int]:
        """The block behind these that begins with the most of the tokens that follow, and how many. All of its tokens
        are there, so it may be a whole block that has lost a page: then it is of no use either."""
        begin = len(whole) * self.tokens_per_block
        before, rest = tuple(tokens[:begin]), tuple(tokens[begin : begin + self.tokens_per_block])
        best: tuple[Block | None, int] = (None, 0)
        for block in self.children(scope, before) if self.shares_parts else ():
            same = [mine == theirs for mine, theirs in zip(rest, block.tokens[begin:], strict=False)]
            shared = same.index(False) if False in same else len(same)
            if shared > best[1] and self._is_usable([*whole, block], begin + shared):
                best = block, shared
        return best

    def children(self, scope: Any, tokens: tuple[int, ...]) -> list[Block]:
        parent = self.tree.get((scope, tokens))
        if parent is not None:
            return list(parent.children)
        return [] if tokens else [each for each in self.tree.values() if each.parent is None and each.scope == scope]

    def _is_usable(self, blocks: list[Block], history: int) -> bool:
        stale = self.stale(history)
        return all(
            page is not None or gone.beg <= ordinal < gone.end
            for ordinal, block in enumerate(blocks)
            for page, gone in zip(block.pages, stale, strict=True)
        )

    def stale(self, history: int) -> list[Range]:
        return [cycle.get_stale_range(history, self.tokens_per_block) for cycle in self.cycles]

    # Questions of a scenario to the books.

    def witness_take_transfers(self) -> list[tuple[str, int, int, int, tuple[int, ...]]]:
        found: list[Any] = [(*move, ()) for pool in self.pools for move in pool.moves]
        for pool in self.pools:
            pool.moves.clear()
        return found

    def witness_slots(self, request_id: int, window: int) -> list[list[int]]:
        """The slots by beam, as the row should name them. There is one beam."""
        group = next(group for group, pool in enumerate(self.pools) if pool.window == window)
        return [self.caches[request_id].witness_row(group)]

    def witness_calls(self) -> list[tuple[str, str]]:
        return []

    def witness_free(self, window: int) -> int:
        pool = next(pool for pool in self.pools if pool.window == window)
        return len(pool.free) + sum(not page.holders for page in pool.idle)


class Cache:
    """One request's pages. Suspended until it is resumed for the first time."""

    enable_swa_scratch_reuse = False

    def __init__(self, runtime: Runtime, scope: Any, tokens: Sequence[int] | None) -> None:
        self.runtime, self._scope = runtime, scope
        self.is_active, self._is_closed = False, False
        self._may_commit = True
        matched = runtime.match(scope, tokens or ())
        block, shared = runtime.part(scope, tokens or (), matched)
        self.capacity = self.history_length = len(matched) * runtime.tokens_per_block + shared
        self._committed = list(tokens or ())[: self.capacity]
        self._blocks_committed = len(matched)
        stale = runtime.stale(self.history_length)
        self._pages: list[list[Page | None]] = [
            [None if gone.beg <= at < gone.end else page for page, gone in zip(block.pages, stale, strict=True)]
            for at, block in enumerate([*matched, *([] if block is None else [block])])
        ]
        self._has_others_part = block is not None  # until the first resume, which copies it
        self._waiting: set[tuple[int, int]] = set()  # pages that the window has passed and that may be committed yet
        self._rows: dict[int, Any] = {}  # by group: memory of the manager's table, which is written as things happen
        for _, group, page in self._all():
            runtime.pools[group].hold(page)

    def set_base_page_index_buf(self, beam: int, group: int, buffer: Any) -> None:
        assert beam == 0, "there are no beams"
        if buffer is None:
            self._rows.pop(group, None)  # the row keeps what it had
            return
        assert buffer.format == "i" and len(buffer) >= len(self._pages), "the row is too short"
        self._rows[group] = buffer
        for ordinal in range(len(buffer)):
            buffer[ordinal] = BAD_PAGE
        if self.is_active:
            self._publish(group)

    def get_aggregated_page_indices(self, group: int, *, valid_only: bool = False) -> Iterator[int]:
        for pages in self._pages:
            page = pages[group]
            if page is not None:
                yield page.slot
            elif not valid_only:
                yield BAD_PAGE

    def get_base_page_indices(self, group: int) -> list[int]:
        """Of what is locked: a page that the window has passed, or of a suspended cache, is not."""
        found = [BAD_PAGE] * len(self._pages)
        for ordinal, of, page in self._locked() if self.is_active else ():
            if of == group:
                found[ordinal] = page.slot
        return found

    @property
    def num_committed_tokens(self) -> int:
        return len(self._committed)

    def resume(self, _stream: int) -> bool:
        assert not self.is_active and not self._is_closed, "only a suspended cache is resumed"
        if max(each.utilization for each in self.runtime.pools) > self.runtime.max_util_for_resume:
            return False
        locked = [(group, page) for _, group, page in self._locked()]
        try:
            lock_all(self.runtime.pools, locked)
        except OutOfPages:
            return False
        if self._has_others_part and not self._copy_part():
            for group, page in locked:
                self.runtime.pools[group].unlock(page)
            return False
        self.is_active = True
        self._publish()
        return True

    def suspend(self) -> None:
        assert self.is_active, "only an active cache is suspended"
        self._rows.clear()  # first, so that the rows keep what they had
        self.is_active = False
        for _, group, page in self._locked():
            self.runtime.pools[group].unlock(page)

    def resize(self, capacity: int | None, history_length: int | None = None) -> bool:
        assert self.is_active, "only an active cache is resized"
        capacity = self.capacity if capacity is None else capacity
        history = self.history_length if history_length is None else history_length
        assert history >= self.history_length, f"history cannot shrink from {self.history_length} to {history}"
        assert capacity >= history, f"a capacity of {capacity} tokens does not cover a history of {history}"
        blocks = -(-capacity // self.runtime.tokens_per_block)
        stale = self.runtime.stale(history)
        try:
            grown = self._grown(blocks, stale)
        except OutOfPages:
            return False
        for ordinal, group, _ in reversed([each for each in self._all() if each[0] >= blocks]):
            self._drop(ordinal, group)
        for ordinal, group, page in list(self._all()):
            if stale[group].beg <= ordinal < stale[group].end and not self._waits_for_commit(ordinal, group):
                if ordinal < self._blocks_committed or not self._may_commit:
                    self._drop(ordinal, group)
                else:  # it may be committed yet
                    self._let_go(ordinal, group, page)
                    self._waiting.add((ordinal, group))
        del self._pages[blocks:]
        self._pages += grown
        self.capacity, self.history_length = capacity, history
        self._publish()
        return True

    def commit(self, tokens: Sequence[int]) -> None:
        if not len(tokens):
            return
        assert self.is_active, "only an active cache commits"
        if not self._may_commit:
            raise RuntimeError("tokens cannot be committed after stop_committing")
        self._committed += list(tokens)
        assert len(self._committed) <= self.capacity, "tokens are committed for which there is no page"
        size = self.runtime.tokens_per_block
        for ordinal in range(self._blocks_committed, len(self._committed) // size):
            self._commit_block(ordinal, tuple(self._committed[: (ordinal + 1) * size]))
        if self.history_length < len(self._committed):
            assert self.resize(None, len(self._committed))

    def stop_committing(self) -> None:
        assert not self._is_closed, "a closed cache has stopped committing"
        has_rest = len(self._committed) > self._blocks_committed * self.runtime.tokens_per_block
        if self._may_commit and has_rest and not self._has_others_part:
            self._commit_block(self._blocks_committed, tuple(self._committed))
        self._may_commit = False
        for ordinal, group in sorted(self._waiting):
            self._drop(ordinal, group)

    def close(self) -> None:
        if self._is_closed:
            return
        self.stop_committing()
        for ordinal, group, _ in reversed(list(self._all())):
            self._drop(ordinal, group)
        self._rows.clear()
        self.is_active, self._is_closed = False, True

    def discard_pending_stats(self) -> None:
        pass

    drop_cached_token_attribution = drop_partial_block_cached_token_attribution = discard_pending_stats

    def _copy_part(self) -> bool:
        """Of its last block, which another has computed, so that it can be written."""
        pages, pools = self._pages[-1], self.runtime.pools
        try:
            make_room(pools, [int(page is not None) for page in pages])
        except OutOfPages:
            return False
        for group, theirs in enumerate(pages):
            if theirs is not None:
                mine = pages[group] = Page(pools[group].free.pop(), locks=1, holders=1)
                pools[group].moves.append(("move", pools[group].window, theirs.slot, mine.slot))
                pools[group].unlock(theirs)
                pools[group].release(theirs)
        self._has_others_part = False
        return True

    def _waits_for_commit(self, ordinal: int, group: int) -> bool:
        """Nobody reads the page any more: it is only held."""
        return (ordinal, group) in self._waiting

    def _locked(self) -> Iterator[tuple[int, int, Page]]:
        return (each for each in self._all() if not self._waits_for_commit(*each[:2]))

    def _all(self) -> Iterator[tuple[int, int, Page]]:
        for ordinal, pages in enumerate(self._pages):
            for group, page in enumerate(pages):
                if page is not None:
                    yield ordinal, group, page

    def _grown(self, blocks: int, stale: list[Range]) -> list[list[Page | None]]:
        """Pages for the blocks that are new; all or none."""
        new = range(len(self._pages), blocks)
        wanted = [[not gone.beg <= ordinal < gone.end for gone in stale] for ordinal in new]
        make_room(self.runtime.pools, [sum(each[group] for each in wanted) for group in range(len(stale))])
        pools = self.runtime.pools
        return [
            [Page(pools[group].free.pop(), locks=1, holders=1) if want else None for group, want in enumerate(each)]
            for each in wanted
        ]

    def _drop(self, ordinal: int, group: int) -> None:
        page = self._pages[ordinal][group]
        assert page is not None
        self._pages[ordinal][group] = None
        if self._waits_for_commit(ordinal, group):
            self._waiting.discard((ordinal, group))
        else:
            self._let_go(ordinal, group, page)
        self.runtime.pools[group].release(page)

    def _let_go(self, ordinal: int, group: int, page: Page) -> None:
        """Of its lock, where the cache has one."""
        if group in self._rows:
            self._rows[group][ordinal] = BAD_PAGE
        if self.is_active:
            self.runtime.pools[group].unlock(page)

    def _commit_block(self, ordinal: int, tokens: tuple[int, ...]) -> None:
        """Pages that another cache has brought take the place of its own; those that are gone are brought again. The
        last block may not be full; it is of no use where another begins with it."""
        runtime, pages, size = self.runtime, self._pages[ordinal], self.runtime.tokens_per_block
        block = runtime.tree.get((self._scope, tokens))
        siblings = runtime.children(self._scope, tokens[: ordinal * size])
        if len(tokens) % size and any(each.tokens[: len(tokens)] == tokens for each in siblings):
            return
        for each in [] if block is not None else siblings:
            if tokens[: len(each.tokens)] == each.tokens:
                each.remove()
        if block is None:
            parent = runtime.tree.get((self._scope, tokens[: ordinal * size]))
            block = Block.under(parent, runtime.tree, self._scope, tokens, runtime.pools)
        self._blocks_committed = ordinal + 1
        taken = []
        for group, (mine, theirs) in enumerate(zip(pages, block.pages, strict=True)):
            if mine is None:
                continue
            if theirs is None:
                block.pages[group], mine.block = mine, block
                runtime.pools[group].idle.pop(mine, None)  # to the end of the queue, once it is let go of
            elif theirs is not mine:
                taken.append((group, mine, theirs))
        self._take(ordinal, taken)
        stale = runtime.stale(self.history_length)
        for group, page in enumerate(pages):
            if page is not None and stale[group].beg <= ordinal < stale[group].end:
                self._drop(ordinal, group)

    def _take(self, ordinal: int, taken: list[tuple[int, Page, Page]]) -> None:
        """In place of its own, which may leave the device to make room."""
        for group, mine, theirs in taken:
            if not self._waits_for_commit(ordinal, group):
                self._let_go(ordinal, group, mine)
            self.runtime.pools[group].hold(theirs)  # else what makes room for it could drop it
        lock_all(self.runtime.pools, [(group, theirs) for group, _, theirs in taken])
        for group, mine, theirs in taken:
            pool = self.runtime.pools[group]
            self._waiting.discard((ordinal, group))
            pool.release(mine)
            self._pages[ordinal][group] = theirs
            if group in self._rows:
                self._rows[group][ordinal] = theirs.slot

    def witness_row(self, group: int) -> list[int]:
        """A page that the window has passed and that may be committed yet is held, but no step reads it."""
        found = []
        for ordinal, pages in enumerate(self._pages):
            page = pages[group]
            gone = page is None or self._waits_for_commit(ordinal, group)
            found.append(BAD_PAGE if gone or page is None else page.slot)
        return found

    def _publish(self, *groups: int) -> None:
        for group in groups or self._rows:
            for ordinal, slot in enumerate(self.witness_row(group)):
                self._rows[group][ordinal] = slot
