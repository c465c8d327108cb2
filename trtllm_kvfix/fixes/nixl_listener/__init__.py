"""Agents of the raw NIXL adapter do without the metadata listener (H6)."""
