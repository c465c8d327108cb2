"""H2: what the V2 manager's gather kernel reads is rewritten while the kernel is queued."""
