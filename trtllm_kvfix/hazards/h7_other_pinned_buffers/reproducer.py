"""H7: the inputs of one step arrive as those of the next (any persistent pinned buffer, overlap scheduler).

Shows:     prompt lengths are written into one pinned tensor and copied with non_blocking=True, as in prepare() of
           attention's metadata. The copy reads the tensor when it runs. The host, a step ahead, writes the next
           lengths before that.
Control:   the same steps, with the host waiting for an event behind the copy before it writes again.
Needs:     torch and a GPU, not TensorRT-LLM: this is the order of calls alone. Takes five seconds.
"""

import sys

import torch

STEPS = ([17, 34], [51, 68])
CYCLES = 1_000_000_000  # about half a second, for which the device is busy with the step before


def first_step_reads(*, fenced: bool) -> list[int]:
    stream = torch.cuda.Stream()
    prompt_lens = torch.zeros(2, dtype=torch.int32, pin_memory=True)  # the buffer that every step uses
    on_device = torch.zeros(2, dtype=torch.int32, device="cuda")
    seen = [torch.zeros(2, dtype=torch.int32, pin_memory=True) for _ in STEPS]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        for lengths, read in zip(STEPS, seen, strict=True):
            prompt_lens[:] = torch.tensor(lengths, dtype=torch.int32)
            on_device.copy_(prompt_lens, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(stream)
            read.copy_(on_device, non_blocking=True)  # what the kernels of this step would read
            if fenced:
                copied.synchronize()
    stream.synchronize()
    return [int(length) for length in seen[0].tolist()]


first_step_reads(fenced=True)  # first uses load kernels, which waits for the device
control, found = first_step_reads(fenced=True), first_step_reads(fenced=False)
print(f"the first step has prompt lengths {STEPS[0]}; it read {control} with a wait and {found} without")
sys.exit(2 if control != STEPS[0] else int(found != STEPS[0]))
