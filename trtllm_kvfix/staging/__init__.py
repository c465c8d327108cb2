"""Staging: what the host hands to the device belongs to the device until its fence has completed."""

from trtllm_kvfix.staging.offset_stager import OffsetStager

__all__ = ["OffsetStager"]
