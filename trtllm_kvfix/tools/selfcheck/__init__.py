"""Check the fixes on the classes of the TensorRT-LLM that is installed here, without a model."""
