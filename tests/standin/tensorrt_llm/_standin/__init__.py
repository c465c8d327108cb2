"""The stand-in needs these modules, which upstream does not have."""
