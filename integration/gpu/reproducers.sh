#!/bin/sh
# Runs the reproducers for upstream with torch on a GPU, in about a minute after the build:
#   integration/gpu/reproducers.sh
# Needs what run.sh needs.
set -eu
cd "$(dirname "$0")/../.."
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r integration tests "$site"/
cd "$site"
exec python3 -m pytest -q -p no:cacheprovider integration/gpu/test_reproducers.py
