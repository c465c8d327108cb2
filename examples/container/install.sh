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

pip=(python3 -m pip --disable-pip-version-check)
if ! "${pip[@]}" --version >/dev/null 2>&1; then  # Dynamo's image has uv and no pip.
  pip=(uv pip)
  UV_PYTHON=$(command -v python3)
  export UV_PYTHON
fi
packages() { "${pip[@]}" list --format=freeze --exclude trtllm-kvfix | LC_ALL=C sort; }
before=$(packages)
"${pip[@]}" install --no-cache-dir "${wheels[0]}"
changed=$(LC_ALL=C comm -23 <(echo "$before") <(packages))
if [ -n "$changed" ]; then
  printf 'installing it has changed or removed what TensorRT-LLM runs with:\n%s\n' "$changed" >&2
  exit 1
fi
trtllm-kvfix --version
