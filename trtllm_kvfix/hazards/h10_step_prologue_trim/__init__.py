"""H10: launches that would mend a torn one are skipped, because it counts as made."""

from trtllm_kvfix.hazards.hazard import Hazard

HAZARD = Hazard(
    id="H10",
    what="a torn launch counts as made, so the equal ones that would mend it are skipped",
    symptoms={
        "step-prologue-trim": "the same for many steps, in a build with the step-prologue trim",
    },
    not_on={
        "device": "the torn launch is that of H2, and what keeps it is a record on the host",
        "installed": "`offsets-v2` shows the torn launch; `reproduce H10` shows that it stays",
        "engine": "it skips no launch",
    },
)
