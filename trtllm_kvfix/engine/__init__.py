"""A small engine of our own: continuous batching with overlap over a paged KV cache, on a GPU or a simulated device.

Read it top to bottom: config, request, model, machine, cache, tables, batch, inputs, forward, loop.
docs/engine.md says what it is for. Its cache is `NativeKvCache`, and the stager ships its tables, as in a server.
"""
