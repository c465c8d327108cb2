"""What the fixes do to the TensorRT-LLM that is installed here, seen on its own classes, without a model."""
