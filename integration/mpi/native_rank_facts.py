"""The test and the ranks it starts both know these; the ranks' own module needs mpi4py."""

ITERATIONS = 120
COMPARED_EVERY = 8
ALONE_AT = 40  # the iteration in which one rank does what the others do not
