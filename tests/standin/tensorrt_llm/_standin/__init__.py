"""What the stand-in needs and upstream does not have."""
