"""The canary: it says when cached KV has changed behind the server's back. docs/canary.md says what it cannot see.

fills.py keeps books of what each slot was filled with, and knows no device. canary.py
chooses which are next, has them digested on the device, compares, and says what it found.
"""
