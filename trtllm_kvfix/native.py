"""The block manager, devices and staging. This is the only module that imports the extension `trtllm_kvfix._core`.

Behaviour is described in docs/block-manager.md, signatures in `_core.pyi`.
"""

from trtllm_kvfix.errors import ExtensionMissing

try:
    from trtllm_kvfix._core import (
        Admission,
        BatchAdmission,
        BlockEvent,
        BlockInFlight,
        BlockManager,
        BlockManagerConfig,
        CacheCounters,
        CopyEngine,
        Device,
        DeviceArray,
        DeviceError,
        InvariantViolation,
        KvCacheStats,
        NativeStager,
        OutOfBlocks,
        PinnedArray,
        PinnedBlock,
        PrefixReuse,
        RequestStats,
        Retention,
        SequenceRequest,
        StagerStats,
        TierStats,
        TransferBatch,
        TransferItem,
        TurnLock,
        TurnLockStats,
        UnknownRequest,
        WindowStats,
        block_hashes,
        build_info,
        open_device,
    )
except ImportError as error:
    raise ExtensionMissing(
        f"the native extension of trtllm-kvfix cannot be loaded: {error}; "
        "in a checkout run `make build`, else reinstall the package for this interpreter"
    ) from error

__all__ = [
    "Admission",
    "BatchAdmission",
    "BlockEvent",
    "BlockInFlight",
    "BlockManager",
    "BlockManagerConfig",
    "CacheCounters",
    "CopyEngine",
    "Device",
    "DeviceArray",
    "DeviceError",
    "InvariantViolation",
    "KvCacheStats",
    "NativeStager",
    "OutOfBlocks",
    "PinnedArray",
    "PinnedBlock",
    "PrefixReuse",
    "RequestStats",
    "Retention",
    "SequenceRequest",
    "StagerStats",
    "TierStats",
    "TransferBatch",
    "TransferItem",
    "TurnLock",
    "TurnLockStats",
    "UnknownRequest",
    "WindowStats",
    "block_hashes",
    "build_info",
    "open_device",
]
