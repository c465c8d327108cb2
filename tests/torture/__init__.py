"""Processes as users drive them when nothing goes by the book.

Two engines in one process, forks under load, logging that raises, tools that replace what we replaced, loops that die,
fixes that come and go while requests run. Everything that is drawn comes from a seed, which `TORTURE_SEED` sets and
every failure shows.
"""
