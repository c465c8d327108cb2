"""Whether loading a prefix is sooner over than computing it, by what has been measured."""

from bisect import bisect_left
from dataclasses import asdict, dataclass
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


class Prefill:
    """How fast prompts are computed. Times are those of one clock, which the caller reads."""

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None
        self._step: tuple[float, int] | None = None

    def note_step(self, now: float, tokens: int) -> None:
        """A step of so many tokens of prompts begins, and the one before it is over."""
        if self._step is not None:
            began, before = self._step
            if before >= STEP_TOKENS_MIN and 0 < now - began < STEP_S_MAX:
                self.tokens_per_s = averaged(self.tokens_per_s, before / (now - began))
        self._step = now, tokens

    def seconds(self, tokens: int) -> float:
        return tokens / self.tokens_per_s if self.tokens_per_s else 0.0


class Worth:
    """Decides by measurements whether loading a prefix from the store is faster than computing it.

    The scheduler's thread uses it. Times are those of one clock, which its caller reads.
    """

    def __init__(self, prefill: Prefill) -> None:
        self.prefill = prefill
        self.bytes_per_s: float | None = None  # of one rank, with all that a load waits for
        self._measured_at = 0.0

    def note_load(self, now: float, nbytes: int, seconds: float) -> None:
        self.bytes_per_s = averaged(self.bytes_per_s, nbytes / max(seconds, 1e-6))
        self._measured_at = now

    def estimate(self, now: float, nbytes: int, tokens: int, waiting_bytes: int) -> Estimate:
        """Estimate both times. Without a measurement the answer is to load, because loading measures."""
        compute_s = self.prefill.seconds(tokens)
        if self.bytes_per_s is None or self.prefill.tokens_per_s is None:
            return Estimate(0.0, compute_s)
        hoped = self.bytes_per_s * hope(now - self._measured_at)
        return Estimate((nbytes + waiting_bytes) / hoped, compute_s)


class HostWorth:
    """The same for the host tier, whose loads mostly wait for steps, whatever their size: so by classes of hits."""

    def __init__(self, prefill: Prefill) -> None:
        self.prefill = prefill
        self._loads: dict[int, tuple[float, float]] = {}  # by class: when the last one ended, seconds

    def note_load(self, now: float, tokens: int, seconds: float) -> None:
        _, before = self._loads.get(class_of(tokens), (0.0, None))
        self._loads[class_of(tokens)] = now, averaged(before, seconds)

    def estimate(self, now: float, tokens: int) -> Estimate:
        compute_s = self.prefill.seconds(tokens)
        measured = self._loads.get(class_of(tokens))
        if measured is None or self.prefill.tokens_per_s is None:
            return Estimate(0.0, compute_s)
        at, seconds = measured
        return Estimate(seconds / hope(now - at), compute_s)


def hope(unmeasured_s: float) -> float:
    """How many times as fast as it was a source may have become."""
    return float(2 ** min(max(unmeasured_s, 0.0) / FORGET_S, 20))


CLASSES = (1024, 4096, 16384, 65536)  # tokens that a hit adds, at most; those of more are one more class


def class_of(tokens: int) -> int:
    return bisect_left(CLASSES, tokens)


@dataclass
class HitClass:
    """Hits of a tier that add about as many tokens, and what was estimated of them."""

    tier: str
    tokens_max: int | None
    hits: int = 0
    loaded: int = 0
    load_ms: float | None = None
    compute_ms: float | None = None


class HitClasses:
    """What was decided of hits, for `status`. The scheduler's thread uses it."""

    def __init__(self, tier: str) -> None:
        self._of = [HitClass(tier, tokens_max) for tokens_max in (*CLASSES, None)]

    def note(self, tokens: int, estimate: Estimate, *, is_loaded: bool) -> None:
        found = self._of[class_of(tokens)]
        found.hits += 1
        found.loaded += is_loaded
        if estimate.load_s and estimate.compute_s:  # else one of them is not known
            found.load_ms = averaged(found.load_ms, 1000 * estimate.load_s)
            found.compute_ms = averaged(found.compute_ms, 1000 * estimate.compute_s)

    def seen(self) -> list[HitClass]:
        return [each for each in self._of if each.hits]

    def report(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self.seen()]


def averaged(before: float | None, new: float) -> float:
    return new if before is None else before + SHARE * (new - before)


def prompt_tokens_of(scheduler_output: Any) -> int:
    """Count the prompt tokens that a step computes: those of requests that have more than one to compute."""
    told = [*scheduler_output.new_requests, *scheduler_output.cached_requests]
    counts = [int(getattr(data, "num_scheduled_tokens", 0)) for data in told]
    return sum(count for count in counts if count > 1)
