"""The commands that examine, model and prove: none of them runs in a server.

In the order in which somebody meets them:

1. `doctor` examines the installed TensorRT-LLM: its variant, the fixes that it needs, the buffers that stay racy.
2. `selfcheck` runs upstream's own code in small scenes, with each fix off and on. `verify` stages the races on this
   GPU, or on the simulated device, and `demo` shows what a reader of answers would see.
3. `bench` serves one traffic without and with the fixes. `replay` plays a trace through the block manager, and says how
   much a host tier or a remote tier would bring. `events` records a running server for it.
4. `status` shows which fixes run in this user's processes now, and writes flight records.

`pictures`, `progress` and `terminal` are what their reports share. The commands do not know one another.
"""
