"""Whether loading a prefix is sooner over than computing it, by what has been measured."""

from typing import Any, NamedTuple

SHARE = 0.3  # of the newest measurement in an average
STEP_TOKENS_MIN = 64  # a smaller step says nothing about prefill
STEP_S_MAX = 5.0  # one that takes longer has waited for requests
FORGET_S = 60.0  # after so long without a load, the store may be twice as fast as it was


class Estimate(NamedTuple):
    load_s: float
    compute_s: float

    @property
    def is_worth(self) -> bool:
        return self.load_s <= self.compute_s


class Worth:
    """Decides by measurements whether loading a prefix from the store is faster than computing it.

    The scheduler's thread uses it. Times are those of one clock, which its caller reads.
    """

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None  # of one rank, with all that a load waits for
        self.tokens_per_s: float | None = None
        self._measured_at = 0.0
        self._step: tuple[float, int] | None = None

    def note_step(self, now: float, tokens: int) -> None:
        """A step of so many tokens of prompts begins, and the one before it is over."""
        if self._step is not None:
            began, before = self._step
            if before >= STEP_TOKENS_MIN and 0 < now - began < STEP_S_MAX:
                self.tokens_per_s = averaged(self.tokens_per_s, before / (now - began))
        self._step = now, tokens

    def note_load(self, now: float, nbytes: int, seconds: float) -> None:
        self.bytes_per_s = averaged(self.bytes_per_s, nbytes / max(seconds, 1e-6))
        self._measured_at = now

    def estimate(self, now: float, nbytes: int, tokens: int, waiting_bytes: int) -> Estimate:
        """Estimate both times. Without a measurement the answer is to load, because loading measures."""
        if self.bytes_per_s is None or self.tokens_per_s is None:
            return Estimate(0.0, tokens / self.tokens_per_s if self.tokens_per_s else 0.0)
        hoped = self.bytes_per_s * 2 ** min(max(now - self._measured_at, 0.0) / FORGET_S, 20)
        return Estimate((nbytes + waiting_bytes) / hoped, tokens / self.tokens_per_s)


def averaged(before: float | None, new: float) -> float:
    return new if before is None else before + SHARE * (new - before)


def prompt_tokens_of(scheduler_output: Any) -> int:
    """Count the prompt tokens that a step computes: those of requests that have more than one to compute."""
    told = [*scheduler_output.new_requests, *scheduler_output.cached_requests]
    counts = [int(getattr(data, "num_scheduled_tokens", 0)) for data in told]
    return sum(count for count in counts if count > 1)
