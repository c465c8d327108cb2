"""Types that constructors take."""

from typing import Any

from .._standin.extension import bound

DataType: Any = bound.DataType
LlmRequestState: Any = bound.LlmRequestState
SamplingConfig: Any = bound.SamplingConfig
