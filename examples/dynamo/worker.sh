#!/bin/bash
# Run a worker of Dynamo with the fixes. It takes dynamo.trtllm's own options.
#   worker.sh --model-path MODEL --served-model-name NAME --extra-engine-args engine.yaml
# Settings are TRTLLM_KVFIX_* variables, because Dynamo also reads the engine's file and may not know the section
# `kvfix:`. Each worker on a node needs its own port for metrics.
set -euo pipefail
exec trtllm-kvfix run -- python3 -m dynamo.trtllm "$@"
