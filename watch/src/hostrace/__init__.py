"""`trtllm-kvfix watch`: find the host touching pinned memory that the device still uses, in any CUDA program."""
