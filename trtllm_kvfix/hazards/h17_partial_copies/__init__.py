"""H17: a block is overwritten in the host tier before the part that a prompt matches is copied from it."""

from trtllm_kvfix.hazards.hazard import Hazard

HAZARD = Hazard(
    id="H17",
    what="a block that a prompt matches in part is overwritten in the host tier before it is copied",
    symptoms={
        "partial-copies": "wrong answers, or another user's text in them, with `host_cache_size` above 0",
    },
    not_on={
        "device": "only bookkeeping of the host goes wrong; the copy itself is in order",
        "engine": "its manager holds the block that it copies from",
    },
)
