"""H1: the V1 manager refills its pinned table of block offsets while a copy of it is queued."""

from trtllm_kvfix.hazards.hazard import Hazard, Scene

HAZARD = Hazard(
    id="H1",
    what="the V1 manager's pinned table of block offsets is refilled while it is read",
    symptoms={
        "staged-offsets-v1": "the same with V1's manager",
    },
    scene=Scene(
        "staged-offsets-v1",
        "The V1 table is refilled while its copy is queued",
        "The copy reads the table when it executes, and finds the next batch: a request's step runs over the "
        "blocks of another one.",
        {"blocks_primary": 112, "blocks_host": 160, "requests_max": 6, "tokens_max": 400},
    ),
)
