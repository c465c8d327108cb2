"""An overlay for TensorRT-LLM's KV cache.

Importing this package is cheap: no torch, no tensorrt_llm, no native code. The block manager is in
`trtllm_kvfix.native`.

    import trtllm_kvfix
    trtllm_kvfix.enable()  # in a script, a Ray actor, a worker process; best before tensorrt_llm is imported
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__version__ = "0.1.0"


def enable(config: "Path | str | None" = None, **settings: "Any") -> "dict[str, Any]":
    """Turn the fixes on in this process and in those that it starts; returns what `status` does.

    Settings are those below `kvfix:`, as keywords: `enable(fixes={"token-budget": "off"}, metrics_port=9400)`. Modules
    of TensorRT-LLM that are imported already are fixed at once, the others when they are imported. A call that raises
    leaves everything as it was.
    """
    from trtllm_kvfix import process  # noqa: PLC0415  importing this package imports nothing

    return process.enable(config, settings)


def disable() -> "list[str]":
    """Take everything back. Returns the attributes that another tool has replaced since, which stay as they are."""
    from trtllm_kvfix import process  # noqa: PLC0415

    return process.disable()


def status() -> "dict[str, Any]":
    """Report what is on in this process, and why, as `{"enabled": True, "fixes": {"token-budget": {"word": ...}}}`."""
    from trtllm_kvfix import process  # noqa: PLC0415

    return process.status()
