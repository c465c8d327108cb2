"""Host tables that a CUDA graph reads at replay are not written before the last replay has ended (H9)."""
