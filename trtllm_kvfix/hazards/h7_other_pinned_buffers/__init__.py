"""H7: inputs of a step are rewritten in pinned buffers while their copies are queued."""

from trtllm_kvfix.hazards.hazard import Hazard, Scene

HAZARD = Hazard(
    id="H7",
    what="other pinned buffers are refilled while they are read",
    symptoms={
        "input-copy-fence": "such an access, or wrong tokens or positions, up to 1.3.0rc14",
    },
    scene=Scene(
        "input-copy-fence",
        "The buffer of a step's inputs is refilled while its copy is queued",
        "Tokens and positions of the next step are computed in the place of this one's.",
        {"blocks_primary": 112, "blocks_host": 160, "requests_max": 5, "tokens_max": 160},
    ),
    not_on={
        "device": "its order of calls is that of H1, with another buffer",
    },
)
