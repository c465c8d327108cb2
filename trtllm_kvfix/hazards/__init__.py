"""The hazards: each room shows one, where it can be shown, and `case.py` has the words that they share."""
