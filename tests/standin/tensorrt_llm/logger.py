"""Upstream's logger: one object, with the levels as methods."""

import logging

logger = logging.getLogger("tensorrt_llm")
