"""H13: the driver reads pageable memory after a copy has returned that was asked to read it during the call."""
