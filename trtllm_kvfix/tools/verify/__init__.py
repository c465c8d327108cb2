"""`trtllm-kvfix verify`: shows on the user's own machine that the hazards are real and that the fixes hold."""
