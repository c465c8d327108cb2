"""The block manager's events for routers, as vLLM publishes them and Dynamo reads them (docs/events.md).

`wire` turns events into those messages, `publisher` sends them over ZMQ: `pip install trtllm-kvfix[events]`.
"""
