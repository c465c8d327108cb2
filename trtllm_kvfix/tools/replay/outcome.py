"""Counts of one run of the replay. These models are also the JSON that `--json` prints."""

from enum import Enum

from pydantic import computed_field

from trtllm_kvfix.offload.worth import HitClass
from trtllm_kvfix.tools.json_model import JsonModel


class AdmissionKind(str, Enum):
    """Ways in which the modelled scheduler adds the requests that it has chosen for an iteration."""

    BATCH = "batch"
    ONE_BY_ONE = "one-by-one"


class HostTierKind(str, Enum):
    """Owners of the host blocks."""

    BUILT_IN = "built-in"
    NATIVE = "native"  # with kvfix.native_host_admission: adaptive; with `all` it is as the built-in one
    CONNECTOR = "connector"


class HostAdmission(str, Enum):
    """kvfix.offload.admission, of the connector alone."""

    ADAPTIVE = "adaptive"
    ALL = "all"


class CacheShape(JsonModel):
    """The cache and the scheduler that were modelled."""

    tokens_per_block: int
    blocks_primary: int
    blocks_host: int
    host_tier: HostTierKind = HostTierKind.BUILT_IN
    host_admission: HostAdmission = HostAdmission.ADAPTIVE
    blocks_remote: int = 0  # of the store behind the connector's host tier
    bytes_per_block: int | None
    max_batch_size: int
    max_num_tokens: int
    tokens_per_iteration: int
    iteration_ms: float
    prefill_tokens_per_s: float | None = None  # with the next one, hits that are slower than computing are computed
    host_gb_per_s: float | None = None
    store_gb_per_s: float | None = None  # of fetches from the store; None: they take no time


class RequestCounts(JsonModel):
    total: int
    finished: int
    refused: int  # prompt and answer together would not fit the primary pool

    @property
    def all_refused(self) -> bool:
        return self.refused == self.total


class Reuse(JsonModel):
    """Prompt tokens, or prompt blocks, by where they came from."""

    primary: int
    host: int
    computed: int
    remote: int = 0  # of host: came from the store behind it just then

    @computed_field  # type: ignore[prop-decorator]
    @property
    def hit_rate(self) -> float:
        total = self.primary + self.host + self.computed
        return (self.primary + self.host) / total if total else 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def hit_rate_host(self) -> float:
        total = self.primary + self.host + self.computed
        return self.host / total if total else 0.0


class Bounds(JsonModel):
    """Prompt tokens that could have been reused at most, by the requests that were not refused."""

    clairvoyant: int  # by a cache of as many blocks that knows what will be asked for
    ceiling: int  # by a cache without limit


class Moved(JsonModel):
    """Transfers of one block each, and the bytes they carry where the size of a block is known."""

    blocks_to_host: int
    blocks_to_primary: int
    blocks_within_primary: int
    bytes_to_host: int | None
    bytes_to_primary: int | None
    bytes_within_primary: int | None


class Budget(JsonModel):
    """The prompt tokens to compute, compared with the scheduler's estimate and its budget."""

    iterations_admitting: int
    deferred: int  # times that a request was offered and had to wait for the next iteration
    overshoots: int  # iterations in which more tokens were to be computed than the budget allowed
    tokens_over: int
    tokens_over_max: int
    promises: int  # admissions whose reuse had been estimated just before
    promises_broken: int  # those that reused something else
    tokens_short: int  # reuse promised and not delivered


class ReplayOutcome(JsonModel):
    admission: AdmissionKind
    partial: bool  # interrupted: everything below is of the part that ran
    shape: CacheShape
    requests: RequestCounts
    iterations: int
    tokens: Reuse
    blocks: Reuse
    moved: Moved
    blocks_dropped: int  # left the cache altogether
    budget: Budget
    elapsed_s: float
    bounds: Bounds | None = None  # nothing where the report is partial
    hits: tuple[HitClass, ...] = ()  # of the host tier and the store, where their speeds are given

    def rate(self, tokens: int) -> float:
        """A share of all prompt tokens, like the hit rates."""
        total = self.tokens.primary + self.tokens.host + self.tokens.computed
        return tokens / total if total else 0.0

    @property
    def kept_its_promise(self) -> bool:
        return self.budget.overshoots == 0 and self.budget.promises_broken == 0


class ReplayReport(JsonModel):
    """`replay --json`: one outcome, two with `--compare`, one for each host size with `--sweep`."""

    workload: str
    lines_bad: int
    partial: bool
    outcomes: list[ReplayOutcome]
