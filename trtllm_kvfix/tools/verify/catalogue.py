"""All cases, by the names that --case takes."""

import difflib
from collections.abc import Sequence

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.fixes.graph_inputs.fix import ReplayFence
from trtllm_kvfix.hazards.case import Case
from trtllm_kvfix.hazards.h1_block_offsets_v1 import device as offsets_v1
from trtllm_kvfix.hazards.h2_block_offsets_v2 import device as offsets_v2
from trtllm_kvfix.hazards.h5_transfer_order import connector, transfer_cases
from trtllm_kvfix.hazards.h9_graph_inputs import device as graph_inputs

CASES: tuple[Case, ...] = (
    *offsets_v1.CASES,
    *offsets_v2.CASES,
    *transfer_cases.CASES,
    *connector.CASES,
    graph_inputs.case(ReplayFence),
)
NAMES = tuple(dict.fromkeys(case.name for case in CASES))


def select(names: Sequence[str]) -> list[Case]:
    """The cases of these names, in the order of the catalogue; all of them where no name is given."""
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(NAMES)}"
            raise SettingsError(f"--case is '{name}', which is not known; {hint}")
    return [case for case in CASES if not names or case.name in names]
