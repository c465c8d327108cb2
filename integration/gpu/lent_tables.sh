#!/bin/sh
# Runs 10,000 iterations for each size of a table that the overlay lends, all sizes at the same time:
#   integration/gpu/lent_tables.sh RESULTS_DIR
# Needs what run.sh needs. Writes rows to RESULTS_DIR. If the tree has no history, KVFIX_COMMIT=<hash> names its commit.
set -eu
tests=integration/gpu/test_lent_tables.py
exec sh "$(dirname "$0")/side_by_side.sh" "${1:?usage: lent_tables.sh RESULTS_DIR}" \
  "$tests -k v1-64KiB" "$tests -k v1-512KiB" "$tests -k v1-16MiB" "$tests -k v2-1MiB" "$tests -k v2-16MiB"
