"""H9: tables that a CUDA graph reads at its replay are refilled while the replay is queued."""

from trtllm_kvfix.hazards.hazard import Hazard, Scene

HAZARD = Hazard(
    id="H9",
    what="tables that a CUDA graph reads at replay are refilled while it is queued",
    symptoms={
        "graph-inputs": "an answer with another user's LoRA adapter, with routed experts (MoE) and CUDA graphs",
    },
    scene=Scene(
        "graph-inputs",
        "A table that a graph reads at its replay is refilled while the replay is queued",
        "A letter is computed with another user's adapter, which shouts, or does not.",
        {"tokens_per_block": 32, "blocks_primary": 32, "blocks_host": 40, "requests_max": 4, "tokens_max": 96},
    ),
)
