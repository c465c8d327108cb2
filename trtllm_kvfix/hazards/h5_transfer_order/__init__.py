"""H5: blocks are stored before they are written, or loaded while they are read."""

from trtllm_kvfix.hazards.hazard import Hazard, Scene

HAZARD = Hazard(
    id="H5",
    what="blocks are stored before they are written, or loaded while they are read",
    symptoms={
        "transfer-order": "the same with a connector for KV cache offloading",
    },
    scene=Scene(
        "transfer-order",
        "Blocks move between the tiers, and no event orders that against the model",
        "A step reads a block whose load is still queued: it holds what its last owner left.",
        {
            "tokens_per_block": 16,
            "blocks_primary": 56,
            "blocks_host": 80,
            "requests_max": 6,
            "tokens_max": 256,
            "late_copies": True,
        },
    ),
    not_on={
        "installed": "a connector under load shows it, which takes a model and a server",
    },
)
