"""H17: a block is overwritten in the host tier before the part that a prompt matches is copied from it."""

from trtllm_kvfix.hazards.hazard import Hazard

HAZARD = Hazard(
    id="H17",
    what="a block that a prompt matches in part is overwritten in the host tier before it is copied",
    symptoms={
        "partial-copies": "another user's text in answers, with V1's own host tier",
    },
    not_on={
        "device": "books alone, which no device reads: the copy itself is in order",
        "engine": "its manager holds the block that it copies from",
    },
)
