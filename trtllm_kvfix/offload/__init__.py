"""The offload connector: a host tier for the KV cache of one node.

    kv_connector_config:
      connector_module: trtllm_kvfix.offload
      connector_scheduler_class: KvfixOffloadScheduler
      connector_worker_class: KvfixOffloadWorker

docs/offload.md describes it for operators. In the order in which a block meets the parts:

1. `connector` has upstream's two classes. It refuses configurations that it cannot serve, makes one side of each, and
   hands every call on.
2. The scheduler side decides, alike on every rank. `policy` says what is found of a prompt, and which blocks go where:
   a list of tiers, of which the host tier is the first. `scheduler` keeps the live requests, promises what was found,
   early if upstream reserves prefixes, writes a step of jobs, and counts what came of it. `switches` reads what an
   operator turns off.
3. `ledger` has one record for each job, from its plan until it is applied, and knows which blocks of the device a job
   still needs. It also has what both sides of a process share (`Link`).
4. The worker side moves. `worker` meets the other ranks; `transfers` knows where a block lies and submits each job to
   the lane of its direction, by DMA or by the copy kernel. `host_tier` makes the host pool as large as the machine
   allows.
5. Where upstream has no callback, it gets replacements (`patches`): before a batch runs, when requests end, when loads
   fail and when weights change.
6. `tier_report` tells `status` what a rank has. `remote` adds a store behind the host tier.
   `loop_tier` is both sides under a loop of our own, for the engine of `demo` and `bench`.

The classes are loaded when they are asked for: their bases are TensorRT-LLM's where it is installed, and settings can
be read without them.
"""

from typing import Any

__all__ = ["KvfixOffloadScheduler", "KvfixOffloadWorker"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from trtllm_kvfix.offload import connector  # noqa: PLC0415  what keeps this module light

        return getattr(connector, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its connector's classes are {__all__}")
