"""Attestations for tests: one of this process, and variations of it."""

from typing import Any

from trtllm_kvfix.overlay.attest import Attestation
from trtllm_kvfix.overlay.fix import Answer, State
from trtllm_kvfix.overlay.registry import FixStatus, Statuses

SEAM = "tensorrt_llm._torch.pyexecutor.resource_manager:KVCacheManager.prepare_resources"


def report(fingerprint: str = "source:1") -> Statuses:
    needed = Answer(State.NEEDED, "its seam is there")
    budget = FixStatus("token-budget", "", "auto", needed, applied=True, seams={SEAM: fingerprint})
    pins = FixStatus("concurrent-pins", "", "auto", Answer(State.NOT_APPLICABLE, "no pins"), applied=False, seams={})
    nixl = FixStatus("nixl-listener", "", "auto", None, applied=False, seams={})
    return Statuses((budget, pins, nixl))


def attestation(rank: int = 0, size: int = 1, *, fingerprint: str = "source:1", started: bool = True) -> Attestation:
    who = {"variant": "D", "job": "job", "rank": rank, "world_size": size, "started": started}
    return Attestation.of(report(fingerprint), **who, aliases=[], manager="upstream", canaries=[])  # type: ignore[arg-type]


def entry(rank: int = 0, size: int = 1, **changes: Any) -> dict[str, Any]:
    return attestation(rank, size).as_dict() | changes
