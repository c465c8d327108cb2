"""Staging: memory that the host gives to the device belongs to the device until its fence has completed."""

from trtllm_kvfix.staging.mark import MovableMark, stream_marks
from trtllm_kvfix.staging.place import StreamPlace, current_place, on_stream

__all__ = ["MovableMark", "StreamPlace", "current_place", "on_stream", "stream_marks"]
