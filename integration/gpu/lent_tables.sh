#!/bin/sh
# 10,000 iterations for each size of a table that the overlay lends, all sizes beside one another:
#   integration/gpu/lent_tables.sh RESULTS_DIR
# Needs what run.sh needs. Rows go to RESULTS_DIR. KVFIX_COMMIT=<hash> names the commit of a tree without its history.
set -u
cd "$(dirname "$0")/../.."
KVFIX_RESULTS=$(realpath "${1:?usage: lent_tables.sh RESULTS_DIR}")
export KVFIX_RESULTS
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r integration bench tests "$site"/
cd "$site" || exit 1
status=0
started=""
for table in v1-64KiB v1-512KiB v1-16MiB v2-1MiB v2-16MiB; do
  python3 -m pytest -q -p no:cacheprovider integration/gpu/test_lent_tables.py -k "$table" >"$table.txt" 2>&1 &
  started="$started $!:$table"
done
for one in $started; do
  wait "${one%%:*}" || status=1
  tail -n 3 "${one#*:}.txt"
done
exit $status
