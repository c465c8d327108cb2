"""What a run adds up while it goes, and how that becomes an outcome."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtllm_kvfix.native import Admission as Admitted
from trtllm_kvfix.native import CacheCounters, TransferItem
from trtllm_kvfix.tools.replay.host_tier import Counted, Found
from trtllm_kvfix.tools.replay.outcome import Admission, Budget, CacheShape, Moved, Outcome, Requests, Reuse


@dataclass(slots=True)
class _Reuse:
    reused: int = 0
    host: int = 0
    computed: int = 0
    remote: int = 0

    def outcome(self) -> Reuse:
        return Reuse(primary=self.reused - self.host, host=self.host, computed=self.computed, remote=self.remote)


@dataclass(slots=True)
class Tally:
    bytes_per_block: int | None
    iterations: int = 0
    iterations_admitting: int = 0
    deferred: int = 0
    overshoots: int = 0
    tokens_over: int = 0
    tokens_over_max: int = 0
    promises: int = 0
    promises_broken: int = 0
    tokens_short: int = 0
    tokens: _Reuse = field(default_factory=_Reuse)
    blocks: _Reuse = field(default_factory=_Reuse)
    _onboards_expected: bool = False

    def count_admissions(self, budget: int, tokens_promised: Sequence[int], admitted: Sequence[Admitted]) -> None:
        """One iteration's admissions: the first of those that were promised something, in the same order."""
        self.iterations_admitting += bool(admitted)
        self.deferred += len(tokens_promised) - len(admitted)
        over = sum(admission.tokens_new for admission in admitted) - budget
        if over > 0:
            self.overshoots += 1
            self.tokens_over += over
            self.tokens_over_max = max(self.tokens_over_max, over)
        for promised, admission in zip(tokens_promised, admitted, strict=False):
            self.promises += 1
            self.promises_broken += admission.tokens_reused != promised
            self.tokens_short += max(promised - admission.tokens_reused, 0)
            self.tokens.reused += admission.tokens_reused
            self.tokens.computed += admission.tokens_new
            self.blocks.reused += admission.blocks_reused
            self.blocks.host += admission.blocks_onboarded
            self.blocks.computed += admission.blocks_new
            self._onboards_expected |= admission.blocks_onboarded > 0

    def count_load(self, tokens_found: int, tokens_per_block: int, found: Found) -> None:
        """What a host tier beside the manager brought of a prompt that was counted as admitted."""
        self.tokens.reused += found.tokens
        self.tokens.host += found.tokens
        self.tokens.computed -= found.tokens
        # A block of which the GPU had a part counts as reused already.
        new = found.blocks - bool(found.blocks and tokens_found % tokens_per_block)
        self.blocks.reused += new
        self.blocks.host += found.blocks
        self.blocks.remote += found.blocks_remote
        self.tokens.remote += min(found.blocks_remote * tokens_per_block, found.tokens)
        self.blocks.computed -= new

    def expects_onboards(self) -> bool:
        return self._onboards_expected

    def count_onboards(self, items: Sequence[TransferItem]) -> None:
        self.tokens.host += sum(item.tokens for item in items if item.kind == "onboard")
        self._onboards_expected = False

    def outcome(
        self,
        *,
        admission: Admission,
        partial: bool,
        shape: CacheShape,
        requests: Requests,
        counters: CacheCounters,
        counted: Counted | None,
        elapsed_s: float,
    ) -> Outcome:
        return Outcome(
            admission=admission,
            partial=partial,
            shape=shape,
            requests=requests,
            iterations=self.iterations,
            tokens=self.tokens.outcome(),
            blocks=self.blocks.outcome(),
            moved=self._moved(counters, counted or Counted(0, 0, 0)),
            blocks_dropped=counters.blocks_dropped if counted is None else counted.dropped,
            budget=Budget(
                iterations_admitting=self.iterations_admitting,
                deferred=self.deferred,
                overshoots=self.overshoots,
                tokens_over=self.tokens_over,
                tokens_over_max=self.tokens_over_max,
                promises=self.promises,
                promises_broken=self.promises_broken,
                tokens_short=self.tokens_short,
            ),
            elapsed_s=elapsed_s,
        )

    def _moved(self, counters: CacheCounters, beside: Counted) -> Moved:
        def size(blocks: int) -> int | None:
            return None if self.bytes_per_block is None else blocks * self.bytes_per_block

        to_host = counters.blocks_offloaded + beside.stored
        to_primary = counters.blocks_onboarded + beside.loaded
        return Moved(
            blocks_to_host=to_host,
            blocks_to_primary=to_primary,
            blocks_within_primary=counters.blocks_copied,
            bytes_to_host=size(to_host),
            bytes_to_primary=size(to_primary),
            bytes_within_primary=size(counters.blocks_copied),
        )
