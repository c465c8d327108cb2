"""The manager of an installed TensorRT-LLM ships two batches (H2)."""

from functools import partial

from trtllm_kvfix.hazards.h1_block_offsets_v1.installed import V2, ships
from trtllm_kvfix.hazards.table import Scenario

SCENARIOS = (Scenario("offsets-v2", "staged-offsets-v2", partial(ships, V2)),)
