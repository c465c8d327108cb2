"""`trtllm-kvfix events`: record the KV events of a running server for `replay`.

`command` asks the server. `recorder` finds out which requests have stored the blocks, and writes them in the format of
`trtllm_kvfix.recording`.
"""
