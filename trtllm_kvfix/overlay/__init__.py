"""Makes the fixes arrive in a running TensorRT-LLM without touching its files (docs/support.md).

Importing this package imports nothing: the start-up hook goes through it in every interpreter of an environment.
"""
