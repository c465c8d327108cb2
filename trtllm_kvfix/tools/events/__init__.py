"""`trtllm-kvfix events`: record the KV events of a running server for `replay`.

`source` asks the server. `stored_requests` finds out which requests have stored the blocks. `command` writes them, in
the format of `trtllm_kvfix.recording`.
"""
