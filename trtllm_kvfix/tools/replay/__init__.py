"""`trtllm-kvfix replay`: run a request trace through the block manager, without a GPU and without a model."""
