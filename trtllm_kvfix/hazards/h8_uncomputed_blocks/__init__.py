"""H8: blocks that nobody computed are offered for reuse."""

from trtllm_kvfix.hazards.hazard import Hazard, Scene

HAZARD = Hazard(
    id="H8",
    what="blocks that nobody computed are offered for reuse",
    symptoms={
        "computed-blocks": "wrong answers to prompts that share a prefix with a cancelled request",
        "connector-prefixes": "the same with V2, sliding windows and a connector",
    },
    scene=Scene(
        "computed-blocks",
        "A prompt that nobody computed to its end is offered to others",
        "A stranger sends the last user's notes and hangs up in the middle. Blocks that were never computed are "
        "found in the cache, and hold what was there before.",
        {"blocks_primary": 112, "blocks_host": 160, "requests_max": 4, "tokens_max": 48, "manager": "one-by-one"},
    ),
    not_on={
        "device": "only bookkeeping of the host goes wrong",
    },
)
