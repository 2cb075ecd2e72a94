#!/usr/bin/env bash
# results/h200/vllm: vLLM's decode step by specbench and by a bare script, on the same machine.
# usage: scripts/h200_vllm.sh MODEL_FOLDER OUTPUT_FOLDER   (GOVREPORT names a file of reports)
set -euo pipefail
model=$1 out=$2
ngram='speculative_config={"method":"ngram","num_speculative_tokens":8,"prompt_lookup_max":4,"prompt_lookup_min":2}'
mkdir -p "$out"

bench() { # batch, context, more options
    python3 -m specbench run --model "$model" --method vllm --no-baseline --dataset longbench-v2 \
        --source sample --ignore-eos --batch-size "$1" --num-prompts "$1" --context-len "$2" \
        --max-new-tokens 256 --repeats 5 --output "$out/$1x$2" --vllm-arg "$ngram"
}

bench 1 24000
bench 16 24000
bench 64 8000
python3 scripts/bare_vllm_step.py "$model" "$out/bare.csv" 1x24000 16x24000 64x8000
cat "$out/bare.csv"
if [ -n "${GOVREPORT:-}" ]; then
    python3 -m specbench run --model "$model" --method vllm --no-baseline --dataset govreport \
        --source "$GOVREPORT" --batch-size 12 --num-prompts 12 --context-len 13000 \
        --max-new-tokens 512 --repeats 3 --output "$out/govreport" --vllm-arg "$ngram"
fi
