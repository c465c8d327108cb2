"""H13: the driver reads pageable memory after a copy has returned that was asked to read it during the call."""

from trtllm_kvfix.hazards.hazard import Hazard

HAZARD = Hazard(
    id="H13",
    what="the driver reads a pageable source after the call during which it was asked to read it",
    symptoms={
        "ephemeral-sources": "wrong answers once pages have moved between tiers, with V2 and a cold-page codec",
    },
    not_on={
        "installed": "upstream's copy is in C++, where Python cannot look at its source",
        "engine": "its copies read pinned memory",
    },
)
