"""`doctor`: the TensorRT-LLM installed here, the fixes that it needs, and the guards of its buffers."""
