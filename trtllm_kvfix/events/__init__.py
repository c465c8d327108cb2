"""The block manager's events for routers, as vLLM publishes them and Dynamo reads them (docs/events.md).

`publisher` turns events into those messages, and sends them over ZMQ: `pip install trtllm-kvfix[events]`.
"""
