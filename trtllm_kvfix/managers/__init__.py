"""Our block manager in the place of upstream's: what its V1 `KVCacheManager` calls `.impl`.

It has been checked against upstream's own Python over a simulated device, and never inside a real TensorRT-LLM.
docs/native-manager.md says what it serves, what it refuses, and when to use it.
"""
