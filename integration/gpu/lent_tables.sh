#!/bin/sh
# 10,000 iterations for each size of a table that the overlay lends, all sizes beside one another:
#   integration/gpu/lent_tables.sh RESULTS_DIR
# Needs what run.sh needs. Rows go to RESULTS_DIR. KVFIX_COMMIT=<hash> names the commit of a tree without its history.
set -eu
tests=integration/gpu/test_lent_tables.py
exec sh "$(dirname "$0")/side_by_side.sh" "${1:?usage: lent_tables.sh RESULTS_DIR}" \
  "$tests -k v1-64KiB" "$tests -k v1-512KiB" "$tests -k v1-16MiB" "$tests -k v2-1MiB" "$tests -k v2-16MiB"
