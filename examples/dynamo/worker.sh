#!/bin/bash
# A worker of Dynamo with the fixes; its options are dynamo.trtllm's own.
#   worker.sh --model-path MODEL --served-model-name NAME --extra-engine-args engine.yaml
# Settings are TRTLLM_KVFIX_* variables: Dynamo reads the engine's file, too, and may not know the section `kvfix:`. Each
# worker on a node needs its own port for metrics.
set -euo pipefail
exec trtllm-kvfix run -- python3 -m dynamo.trtllm "$@"
