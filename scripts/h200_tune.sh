#!/usr/bin/env bash
# results/h200/tune: Vegas tuned at about 20,000 tokens beside its defaults and an exhaustive coarse grid.
# usage: scripts/h200_tune.sh MODEL_FOLDER PROMPTS_JSONL OUTPUT_FOLDER STAGE...
# stages: 16, 64 (the batch), loads (a schedule for batches by contexts). A stage stops after LIMIT
# seconds (450) and, called again with the same folder, goes on where it stopped.
set -euo pipefail
model=$1 prompts=$2 out=$3
shift 3
LIMIT=${LIMIT:-450}
# shellcheck source=scripts/in_parts.sh
source "$(dirname "${BASH_SOURCE[0]}")/in_parts.sh"
mkdir -p "$out"

tune() { # folder, options
    in_parts "$1" "$out/$1/study.journal" python3 -m specbench tune --method vegas \
        --model "$model" --dataset "file:$prompts" --max-new-tokens "${TOKENS:-256}" \
        --output "$out/$1" "${@:2}"
}

for stage in "$@"; do
    case $stage in
    16 | 64)
        tune "$stage" --batch-size "$stage" --num-prompts "$stage" --held-out "$stage" \
            --context-len 20000 --ratios 0.01,0.02,0.03,0.05,0.1 --gammas 4,6,8,12,16 --exhaustive
        ;;
    loads)
        tune loads --batch-size 1,4,16,64 --context-len 2048,8192,20000 --budget-minutes 2
        ;;
    *)
        echo "unknown stage $stage" >&2
        exit 2
        ;;
    esac
done
