"""H10: launches that would mend a torn one are skipped, because it counts as made."""
