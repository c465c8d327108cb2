#!/bin/bash
# Become COMMAND with the fixes, so that its process id, signals and exit code are the container's.
#   serve.sh COMMAND...
# With KVFIX_STRICT=1 nothing starts if `doctor` finds a problem, such as a fix that is needed and off. Settings are
# TRTLLM_KVFIX_* variables, or the section `kvfix:` of the server's own YAML file.
set -euo pipefail
if [ "$#" -eq 0 ]; then
  echo "serve.sh wants the command to run, such as trtllm-serve MODEL" >&2
  exit 2
fi
case ${KVFIX_STRICT:-0} in
  0) ;;
  1) trtllm-kvfix run -- trtllm-kvfix doctor -- "$@" >&2 ;;
  *)
    echo "serve.sh: KVFIX_STRICT is '$KVFIX_STRICT'; write 1, or 0 for a start without doctor" >&2
    exit 2
    ;;
esac
# Pinned memory counts as locked memory. If the limit cannot be lifted, `doctor --verbose` shows it, and large host pools fail.
ulimit -l unlimited 2>/dev/null || echo "serve.sh: locked memory stays limited to $(ulimit -l) KiB" >&2
# NVIDIA's images have an entry point that sets the image up and then becomes the command that it gets.
own=${KVFIX_IMAGE_ENTRYPOINT:-/opt/nvidia/nvidia_entrypoint.sh}
if [ -x "$own" ]; then
  exec "$own" trtllm-kvfix run -- "$@"
fi
exec trtllm-kvfix run -- "$@"
