"""A tier behind the host pool: a store that nodes share and restarts survive. docs/offload.md, "The remote tier".

The store's client runs in a process of its own, the porter: one of its calls holds the interpreter's lock for a minute
and a half where the master does not answer, another one ends the process, and a read that has failed may still write
what it was for. Nothing of that reaches an engine, and a porter that is dead writes nothing.

In the order in which a prompt meets the parts: `scheduler` asks about it before upstream's scheduler sees it. `keys`
names its blocks, with what it knows of the engine's arguments. `scheduler` then says what the policy may fetch from the
store, and what is put. `worker` passes both on to `porter_process`, in `messages`.
"""
