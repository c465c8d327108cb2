"""An overlay for TensorRT-LLM's KV cache.

Importing this package is cheap: no torch, no tensorrt_llm, no native code. The block manager is in
`trtllm_kvfix.native`.
"""

__version__ = "0.1.0"
