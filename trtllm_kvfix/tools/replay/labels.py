"""Names of tiers and policies in tables and pictures, so that readers can distinguish them."""

from trtllm_kvfix.plurals import number_of
from trtllm_kvfix.tools.replay.outcome import Admission, CacheShape, HostTierKind

_TIERS = {
    HostTierKind.BUILT_IN: "TensorRT-LLM's own host tier (takes what the GPU evicts, drops the least recently used)",
    HostTierKind.CONNECTOR: "the offload connector's host tier (admission: {admission}, drops the least recently used)",
}
_TO_HOST = {HostTierKind.BUILT_IN: "blocks evicted to host", HostTierKind.CONNECTOR: "blocks stored to host"}
_ADMISSIONS = {Admission.BATCH: "batch admission", Admission.ONE_BY_ONE: "one-by-one admission"}


def tier_of(shape: CacheShape) -> str:
    return _TIERS[shape.host_tier].format(admission=shape.host_admission.value)


def to_host(shape: CacheShape) -> str:
    return _TO_HOST[shape.host_tier]


def admission_of(admission: Admission) -> str:
    return _ADMISSIONS[admission]


def pool_of(shape: CacheShape) -> str:
    return f"{number_of(shape.blocks_primary, 'primary block')} of {number_of(shape.tokens_per_block, 'token')}"
