"""H8: blocks that nobody has computed are offered for reuse (KVCacheManager, chunked prefill).

Shows:     a request is in the middle of its prompt: two blocks of seven have been computed. A second request with the
           same prompt reuses more than those two, so it attends to whatever the blocks' last owner left.
Control:   the same second request when the first has computed its whole prompt: it reuses all of it, rightly.
Needs:     torch, a GPU, TensorRT-LLM (1.1, 1.2.0; 1.2.1 is fixed); no model. Takes half a minute, most of it imports.
"""

import sys

import torch

from trtllm_kvfix.hazards.h8_uncomputed_blocks.installed import CHUNK, PROMPT, two_with_a_prompt
from trtllm_kvfix.hazards.small import Requests


def tokens_reused(computed: int) -> int:
    """Tokens that a second request reuses when `computed` tokens of the first have been computed."""
    _, second = two_with_a_prompt(Requests(torch.cuda.Stream(), blocks=32), computed)
    return int(second.prepopulated_prompt_len)


control, found = tokens_reused(len(PROMPT)), tokens_reused(CHUNK)
print(f"{CHUNK} of {len(PROMPT)} tokens computed: {found} reused; all computed: {control} reused")
sys.exit(2 if control < len(PROMPT) - 1 else int(found > CHUNK))
