"""Upstream's step-prologue trim: a launch is skipped where its payload equals the last one that was recorded (H10)."""

from typing import Any, Literal, TypeAlias

from trtllm_kvfix.overlay.upstream import STEP_PROLOGUE_TRIM, Upstream

VARIABLE = "TRTLLM_STEP_PROLOGUE_TRIM"  # read by upstream when its module is imported
Mode: TypeAlias = Literal["", "on", "off", "verify", "unknown"]  # the first: this build has none


def mode(upstream: Upstream) -> Mode:
    """What upstream's own functions say. Nobody can ask them of source that only lies there."""
    try:
        trim: Any = upstream.module(STEP_PROLOGUE_TRIM)
        if trim is None:
            return ""
        if not trim.step_prologue_trim_enabled():
            return "off"
        return "verify" if trim.step_prologue_trim_verify() else "on"
    except Exception:
        return "unknown"
