"""The manager of an installed TensorRT-LLM ships two batches (H2)."""

from functools import partial

from trtllm_kvfix.hazards.hazard import Scenario
from trtllm_kvfix.hazards.shipping import V2, ships

SCENARIOS = (Scenario("offsets-v2", "staged-offsets-v2", partial(ships, V2)),)
