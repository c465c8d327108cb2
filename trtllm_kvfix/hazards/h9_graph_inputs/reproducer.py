"""H9: a CUDA graph's replay reads the LoRA tables of the next step (CudaGraphLoraParams).

Shows:     a graph has captured copies out of token_to_slot_host, which is pinned. Its replay is queued; the next step
           fills the table for its own batch before the replay has run, and tokens are computed with another request's
           adapter.
Control:   the same steps, with the host waiting for the replay before the next step fills the table.
Needs:     torch, a GPU, TensorRT-LLM with LoRA on routed experts in CUDA graphs (1.3.0rc19 and later); no model. Half
           a minute.
"""

import sys

import torch

try:
    from tensorrt_llm._torch.peft.lora.cuda_graph_lora_params import CudaGraphLoraParams
except ImportError as error:
    print(f"this release has no CudaGraphLoraParams: {error}")
    sys.exit(2)

from trtllm_kvfix.hazards.h9_graph_inputs.installed import BATCH, lora_tables

FIRST, SECOND = [0, 0], [1, 1]  # the adapter slot of each token
CYCLES = 1_000_000_000  # about half a second, for which the device is busy with the step before


def main() -> int:
    params, stream = lora_tables(CudaGraphLoraParams), torch.cuda.Stream()
    table = getattr(params, "token_to_slot_host", None)
    if table is None or not table.is_pinned():
        print("no graph is handed this table here, or it is not pinned")
        return 2
    on_device = torch.zeros(BATCH, dtype=torch.int32, device="cuda")
    seen = torch.zeros(BATCH, dtype=torch.int32, pin_memory=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        on_device.copy_(table[:BATCH], non_blocking=True)  # as the experts' layer does inside the graph

    def first_step_reads(*, wait: bool) -> list[int]:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
            params.update_sorted_indices(FIRST, tokens_per_seq=1)
            graph.replay()
            seen.copy_(on_device, non_blocking=True)
            if wait:
                stream.synchronize()
            params.update_sorted_indices(SECOND, tokens_per_seq=1)
        stream.synchronize()
        return [int(slot) for slot in seen.tolist()]

    first_step_reads(wait=True)  # the first replay brings the graph to the device
    control, found = first_step_reads(wait=True), first_step_reads(wait=False)
    print(f"the first step's tokens use slots {FIRST}; its graph read {control} with a wait and {found} without")
    return 2 if control != FIRST else int(found != FIRST)


if __name__ == "__main__":
    sys.exit(main())
