"""Staging: memory that the host gives to the device belongs to the device until its fence has completed."""

from trtllm_kvfix.staging.mark import Mark
from trtllm_kvfix.staging.place import Place, current_place, on_stream

__all__ = ["Mark", "Place", "current_place", "on_stream"]
