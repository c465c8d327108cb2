"""Odds and ends that upstream keeps here."""

import os


def enable_worker_single_process_for_tp1() -> bool:
    """One rank runs inside the server's own process (surface 7.2)."""
    return os.environ.get("TLLM_WORKER_USE_SINGLE_PROCESS") == "1"
