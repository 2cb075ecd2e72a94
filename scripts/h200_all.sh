#!/usr/bin/env bash
# results/h200/all: every method on every dataset, on one machine, in parts that stand alone.
# usage: scripts/h200_all.sh MODEL_FOLDER DATA_FOLDER OUTPUT_FOLDER STAGE...
# DATA_FOLDER holds aime25.jsonl, govreport.jsonl and longbench_v2_style.jsonl; DRAFT names LongSpec's
# weights, without which that method is left out, and TREE_SHAPE the drafts of its levels.
# stages: aime25 (T 0.6, top-p 0.95, top-k 20), codeelo (the built-in sample), govreport,
# longbench-v2; report (all of them in one)
# A stage stops after LIMIT seconds (580) and, called again with the same folder, goes on where it was.
set -euo pipefail
model=$1 data=$2 out=$3
shift 3
LIMIT=${LIMIT:-580}
# shellcheck source=scripts/in_parts.sh
source "$(dirname "${BASH_SOURCE[0]}")/in_parts.sh"
draft=()
[[ -z ${DRAFT:-} ]] || draft=(--draft-weights "$DRAFT" ${TREE_SHAPE:+--tree-shape "$TREE_SHAPE"})
mkdir -p "$out"

bench() { # dataset, its prompts, options
    in_parts "$1" "$out/$1/run.json" python3 -m specbench run --method all --variant all \
        --model "$model" --dataset "$1" --batch-size "$2" --num-prompts "$2" \
        --vllm-arg max_model_len=24832 "${draft[@]}" --output "$out/$1" "${@:3}"
}

for stage in "$@"; do
    case $stage in
    aime25)
        bench aime25 30 --source "$data/aime25.jsonl" --max-new-tokens 4096 \
            --temperature 0.6 --top-p 0.95 --top-k 20
        ;;
    codeelo) bench codeelo "${CODEELO:-16}" --source sample --max-new-tokens 1024 ;;
    govreport)
        bench govreport 12 --source "$data/govreport.jsonl" --context-len 20000 \
            --max-new-tokens 512 --reuse-prompts
        ;;
    longbench-v2)
        bench longbench-v2 10 --source "$data/longbench_v2_style.jsonl" --context-len 22000 \
            --max-new-tokens 512 --reuse-prompts
        ;;
    report)
        # AIME25 is sampled, the others are greedy: shown together, and marked so
        python3 -m specbench report "$out"/{aime25,codeelo,govreport,longbench-v2} \
            --output "$out/report" --force
        ;;
    *)
        echo "unknown stage $stage" >&2
        exit 2
        ;;
    esac
done
