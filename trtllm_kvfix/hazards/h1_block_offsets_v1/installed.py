"""The manager of an installed TensorRT-LLM ships two batches (H1)."""

from functools import partial

from trtllm_kvfix.hazards.hazard import Scenario
from trtllm_kvfix.hazards.shipping import V1, ships

SCENARIOS = (Scenario("offsets-v1", "staged-offsets-v1", partial(ships, V1)),)
