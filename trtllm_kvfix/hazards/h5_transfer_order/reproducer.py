"""H5: a block is saved to the host before the kernel that writes it has run (two streams, no event between them).

Shows:     a kernel that will write a block is queued on the compute stream. A copy of the block to the host is
           enqueued on another stream, as an offload connector does: it runs at once, and saves what was there before.
Control:   the same two calls, with the copy's stream waiting for the compute stream.
Needs:     torch and a GPU, not TensorRT-LLM: this is the order of calls alone. Takes five seconds.
"""

import sys

import torch

WORDS = 1 << 20
OLD, NEW = 1, 2
CYCLES = 1_000_000_000  # about half a second, for which the compute stream is busy


def wrong_words(*, ordered: bool) -> int:
    """Count the words of the saved block that the kernel did not write."""
    compute, copies = torch.cuda.Stream(), torch.cuda.Stream()
    block = torch.zeros(WORDS, dtype=torch.int32, device="cuda")
    saved = torch.zeros(WORDS, dtype=torch.int32, pin_memory=True)
    with torch.cuda.stream(compute):
        block.fill_(OLD)
    torch.cuda.synchronize()
    with torch.cuda.stream(compute):
        torch.cuda._sleep(CYCLES)
        block.fill_(NEW)  # attention writes the keys and values of a step
    if ordered:
        copies.wait_stream(compute)
    with torch.cuda.stream(copies):
        saved.copy_(block, non_blocking=True)
    if not ordered:
        copies.synchronize()  # the connector sees its copy done, and counts the block as saved
    torch.cuda.synchronize()
    return sum(word != NEW for word in saved.tolist())


wrong_words(ordered=True)  # first uses load kernels, which waits for the device
control, found = wrong_words(ordered=True), wrong_words(ordered=False)
print(f"wrong words of {WORDS}: {control} with an event between the streams, {found} without")
sys.exit(2 if control else int(found > 0))
