"""Only what a forward step has computed is offered for reuse (H8)."""
