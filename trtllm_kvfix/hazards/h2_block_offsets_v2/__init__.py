"""H2: what the V2 manager's gather kernel reads is rewritten while the kernel is queued."""

from trtllm_kvfix.hazards.hazard import Hazard, Scene

HAZARD = Hazard(
    id="H2",
    what="the tables that the V2 manager's gather kernel reads are refilled while it reads them",
    symptoms={
        "staged-offsets-v2": (
            "garbled text, words of another user's answer, or `an illegal memory access was encountered`, under load"
        ),
    },
    scene=Scene(
        "staged-offsets-v2",
        "V2's rows and their numbers are rewritten while the kernel that reads them is queued",
        "The kernel gathers the rows of the next batch.",
        {"blocks_primary": 112, "blocks_host": 160, "requests_max": 6, "tokens_max": 400, "layout": "v2"},
    ),
)
