"""H3: cached prefixes that a batch counts on are evicted while it is admitted."""

from trtllm_kvfix.hazards.hazard import Hazard

HAZARD = Hazard(
    id="H3",
    what="cached prefixes that a batch counts on are evicted while it is admitted",
    symptoms={
        "token-budget": (
            "`total_num_tokens ... should be less than or equal to max_num_tokens`; then `/health` answers 200 "
            "while the executor is dead"
        ),
        "batched-admission": "a low KV cache hit rate when many requests arrive at once",
    },
    not_on={
        "device": "only bookkeeping of the host goes wrong; `replay --compare` counts the tokens",
        "engine": "answers do not depend on how much is reused, and nothing here dies of a batch that is too large",
    },
)
