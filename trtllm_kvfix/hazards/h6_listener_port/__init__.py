"""H6: two agents of one host share a listener's port."""

from trtllm_kvfix.hazards.hazard import Hazard

HAZARD = Hazard(
    id="H6",
    what="two agents of one host share a listener port",
    symptoms={
        "nixl-listener": "`Failed to bind metadata listener socket`",
    },
    not_on={
        "device": "a port, and no memory: `make test-nixl` opens it twice",
        "engine": "it has no agents",
    },
)
