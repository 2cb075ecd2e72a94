#!/usr/bin/env bash
# results/h200/load: a thousand real requests through one engine, the KV pages checked after each.
# usage: scripts/h200_load.sh MODEL_FOLDER PROMPTS_JSONL OUTPUT_FOLDER STAGE...
# stages: METHOD (vegas, autoregressive, lookup, ...), METHOD.ROWS for another number than 64;
# memory (another process takes the GPU's memory in the middle of a run: tests/faults/test_gpu.py)
# REQUESTS, CONTEXT and NEW_TOKENS override 1000, 8000 and 128
set -euo pipefail
model=$1 prompts=$2 out=$3
shift 3
failed=0

for stage in "$@"; do
    case $stage in
    memory) python3 -m pytest -q -m gpu --slow tests/faults/test_gpu.py || failed=1 ;;
    *)
        method=${stage%.*} rows=64
        [[ $stage != *.* ]] || rows=${stage#*.}
        python3 scripts/load.py "$model" "$prompts" "$out/$stage" --method "$method" \
            --rows "$rows" --requests "${REQUESTS:-1000}" --context-len "${CONTEXT:-8000}" \
            --max-new-tokens "${NEW_TOKENS:-128}" || failed=1
        ;;
    esac
done
exit $failed
