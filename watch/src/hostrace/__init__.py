"""Find the host touching pinned memory that the device still uses, in any CUDA program.

A report passes these parts, in this order: `launch` starts the command with the library in it, `races` reads what the
library wrote about each process, `suppressions` leaves known races out, `report` and `page` tell the rest. `command` is
the command line, and `pytest_plugin` does the same for the tests of a run.
"""

__version__ = "0.1.0"
