"""`trtllm-kvfix bench`: the same engine under load, with each fix, manager and tier."""
