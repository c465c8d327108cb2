"""H7: inputs of a step are rewritten in pinned buffers while their copies are queued."""
