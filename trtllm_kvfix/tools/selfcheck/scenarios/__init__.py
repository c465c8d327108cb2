"""What can go wrong on the installed classes, and is right with the fixes. Each answers what was wrong, or None."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.tools.selfcheck.ground import Ground
from trtllm_kvfix.tools.selfcheck.scenarios.admission import reuses_in_a_batch, shares_a_prompt
from trtllm_kvfix.tools.selfcheck.scenarios.offsets import V1, V2, ships


@dataclass(frozen=True)
class Scenario:
    name: str
    fix_id: str
    run: Callable[[Ground, Upstream], str | None]
    # Its fix is needed by builds that are right without it, and finds that out while it runs.
    may_be_right: bool = False


SCENARIOS = (
    Scenario("offsets-v1", "staged-offsets-v1", partial(ships, V1)),
    Scenario("offsets-v2", "staged-offsets-v2", partial(ships, V2)),
    Scenario("chunks-shared", "computed-blocks", shares_a_prompt, may_be_right=True),
    Scenario("admission-order", "batched-admission", reuses_in_a_batch),
)
