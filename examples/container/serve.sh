#!/bin/bash
# Become COMMAND with the fixes, so that its process id, signals and exit code are the container's.
#   serve.sh [OPTION OF trtllm-kvfix run...] COMMAND...
# With KVFIX_STRICT=1 nothing starts that would lack a fix which it needs and which nobody has switched off or set to
# observe. Settings are TRTLLM_KVFIX_* variables, or the section `kvfix:` of the file that TRTLLM_KVFIX_CONFIG names.
# TRTLLM_KVFIX_ENABLED=false starts COMMAND without the fixes, even if settings files or other TRTLLM_KVFIX_ variables
# are wrong. Unknown options of `run` and a wrong KVFIX_STRICT are still refused.
set -euo pipefail
if [ "$#" -eq 0 ]; then
  echo "serve.sh wants the command to run, such as trtllm-serve MODEL" >&2
  exit 2
fi
case ${KVFIX_STRICT:-0} in
  0) strict= ;;
  1) strict=--strict ;;
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
  exec "$own" trtllm-kvfix run ${strict:+"$strict"} "$@"
fi
exec trtllm-kvfix run ${strict:+"$strict"} "$@"
