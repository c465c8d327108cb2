#!/bin/bash
# Install the wheel in FOLDER beside TensorRT-LLM and change nothing else. The image's own packages keep their versions.
#   install.sh FOLDER
set -euo pipefail
folder=${1:?the folder with the wheel is missing}
wheels=("$folder"/trtllm_kvfix-*.whl)
if [ "${#wheels[@]}" -ne 1 ] || [ ! -e "${wheels[0]}" ]; then
  echo "$folder has no wheel of trtllm-kvfix, or several" >&2
  exit 2
fi

packages() { python3 -m pip list --format=freeze --disable-pip-version-check --exclude trtllm-kvfix | LC_ALL=C sort; }
before=$(packages)
python3 -m pip install --no-cache-dir --disable-pip-version-check "${wheels[0]}"
changed=$(LC_ALL=C comm -23 <(echo "$before") <(packages))
if [ -n "$changed" ]; then
  printf 'installing it has changed or removed what TensorRT-LLM runs with:\n%s\n' "$changed" >&2
  exit 1
fi
trtllm-kvfix --version
