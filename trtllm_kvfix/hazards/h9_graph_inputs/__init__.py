"""H9: tables that a CUDA graph reads at its replay are refilled while the replay is queued."""
