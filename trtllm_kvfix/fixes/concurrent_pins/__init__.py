"""Calls on the bound manager take turns, whichever thread they come from (H4)."""
