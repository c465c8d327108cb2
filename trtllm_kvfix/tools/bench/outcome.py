"""Outcome of a run of `bench`. These models are also the JSON that `--json` prints."""

from pydantic import BaseModel, ConfigDict


class _Found(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArmOutcome(_Found):
    """Medians over the runs of one way to run the engine."""

    name: str
    manager: str
    layout: str
    tier: str
    host_blocks: int
    off: list[str]
    tokens_per_s: float  # of answers
    first_token_ms_median: float
    first_token_ms_p95: float
    token_ms_median: float  # from one token of an answer to the next
    tokens_reused: int  # of prompts
    tokens_computed: int
    reuse_lost: int  # tokens that were promised to a prompt of a batch, and evicted before its turn
    preemptions: int


class Report(_Found):
    """`bench --json`."""

    version: str
    device: str
    simulated: bool
    model: str
    load: str
    requests: int
    rate: float
    repeats: int
    arms: list[ArmOutcome]
