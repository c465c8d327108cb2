#!/bin/sh
# Selections of tests beside one another, each in a process of its own, for what takes long and leaves a GPU idle:
#   integration/gpu/side_by_side.sh RESULTS_DIR 'pytest arguments' ['pytest arguments' ...]
# Needs what run.sh needs. Rows and what pytest said go to RESULTS_DIR. KVFIX_COMMIT=<hash> names the commit of a tree
# without its history.
set -u
cd "$(dirname "$0")/../.."
KVFIX_RESULTS=$(realpath "${1:?usage: side_by_side.sh RESULTS_DIR 'pytest arguments' ...}")
export KVFIX_RESULTS
shift
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r integration bench tests "$site"/
cd "$site" || exit 1
status=0
started=""
for selection in "$@"; do
  said="$KVFIX_RESULTS/$(printf %s "$selection" | tr -c 'a-zA-Z0-9\n' _).txt"
  # shellcheck disable=SC2086  # a selection is several arguments
  python3 -m pytest -q -p no:cacheprovider $selection >"$said" 2>&1 &
  started="$started $!:$said"
done
for one in $started; do
  wait "${one%%:*}" || status=1
  echo "${one#*:}"
  tail -n 3 "${one#*:}"
done
exit $status
