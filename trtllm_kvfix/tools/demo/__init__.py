"""`trtllm-kvfix demo`: a few users chat with an engine whose answers can be read."""
