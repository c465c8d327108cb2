"""The next step waits until the device has taken the last step's inputs (H7)."""
