#!/bin/sh
# Tests the native manager under PyTorch's paged attention, in one to two minutes:
#   integration/gpu/native.sh
# Needs what run.sh needs, and a torch with FlexAttention (2.5 or newer).
set -eu
cd "$(dirname "$0")/../.."
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r integration bench tests "$site"/
cd "$site"
python3 -m pytest -q -rs -p no:cacheprovider integration/gpu/test_native_manager.py
