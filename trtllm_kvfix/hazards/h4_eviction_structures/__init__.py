"""H4: two threads change the eviction structures at once."""

from trtllm_kvfix.hazards.hazard import Hazard

HAZARD = Hazard(
    id="H4",
    what="two threads change the eviction structures at once",
    symptoms={
        "concurrent-pins": (
            "the count of free blocks drifts, or the eviction policy crashes, while another thread pins blocks"
        ),
    },
    not_on={
        "device": "only bookkeeping of the host goes wrong; `make race-control` shows it",
        "engine": "one thread alone calls its manager",
    },
)
