#!/bin/sh
# Runs selections of tests at the same time, each in its own process. For tests that take long and leave the GPU idle:
#   integration/gpu/side_by_side.sh RESULTS_DIR 'pytest arguments' ['pytest arguments' ...]
# Needs what run.sh needs. Writes rows to RESULTS_DIR. If the tree has no history, KVFIX_COMMIT=<hash> names its commit.
set -u
cd "$(dirname "$0")/../.."
KVFIX_RESULTS=$(realpath "${1:?usage: side_by_side.sh RESULTS_DIR 'pytest arguments' ...}")
export KVFIX_RESULTS
shift
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r integration bench tests "$site"/
cd "$site" || exit 1
side_by_side "$@"
