"""The commands that examine, model and prove: none of them runs in a server."""
