"""Types that constructors take."""

import enum


class DataType(enum.Enum):
    HALF = "half"
    BF16 = "bf16"
