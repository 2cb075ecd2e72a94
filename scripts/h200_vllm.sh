#!/usr/bin/env bash
# results/h200/vllm: vLLM's decode step by specbench and by a bare script, on the same machine.
# usage: scripts/h200_vllm.sh MODEL_FOLDER OUTPUT_FOLDER STAGE...
# stages: BATCHxCONTEXT, bare, govreport (GOVREPORT names a file of reports)
set -euo pipefail
model=$1 out=$2
shift 2
ngram='speculative_config={"method":"ngram","num_speculative_tokens":8,"prompt_lookup_max":4,"prompt_lookup_min":2}'
mkdir -p "$out"

bench() { # folder, options
    python3 -m specbench run --model "$model" --method vllm --no-baseline --vllm-arg "$ngram" \
        --output "$out/$1" "${@:2}"
}

for stage in "$@"; do
    case $stage in
    bare) python3 scripts/bare_vllm_step.py "$model" "$out/bare.csv" 1x24000 16x24000 64x8000 ;;
    govreport)
        bench govreport --dataset govreport --source "$GOVREPORT" --batch-size 12 \
            --num-prompts 12 --context-len 13000 --max-new-tokens 512 --repeats 3
        ;;
    *)
        bench "$stage" --dataset longbench-v2 --source sample --ignore-eos --repeats 5 \
            --batch-size "${stage%x*}" --num-prompts "${stage%x*}" --context-len "${stage#*x}" \
            --max-new-tokens 256
        ;;
    esac
done
