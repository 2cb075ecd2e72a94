#!/usr/bin/env bash
# results/h200/vllm: vLLM's decode step by specbench and by a bare script, on the same machine.
# usage: scripts/h200_vllm.sh MODEL_FOLDER OUTPUT_FOLDER STAGE...
# stages: BATCHxCONTEXT, with vLLM's n-gram speculation as BATCHxCONTEXT+ngram; bare.N;
# govreport (GOVREPORT names a file of reports)
set -euo pipefail
model=$1 out=$2
shift 2
ngram='speculative_config={"method":"ngram","num_speculative_tokens":8,"prompt_lookup_max":4,"prompt_lookup_min":2}'
length=24832 # one for all, so that vLLM compiles once
mkdir -p "$out"

bench() { # folder, options
    python3 -m specbench run --model "$model" --method vllm --no-baseline \
        --vllm-arg max_model_len=$length --output "$out/$1" "${@:2}"
}

for stage in "$@"; do
    shape=${stage%+ngram}
    more=()
    [[ $stage != *+ngram ]] || more=(--vllm-arg "$ngram")
    case $stage in
    bare.*) python3 scripts/bare_vllm_step.py "$model" $length "$out/$stage.csv" 1x24000 16x24000 64x8000 ;;
    govreport)
        bench govreport --dataset govreport --source "$GOVREPORT" --batch-size 12 \
            --num-prompts 12 --context-len 13000 --max-new-tokens 512 --repeats 3 --vllm-arg "$ngram"
        ;;
    *)
        bench "$shape" --dataset longbench-v2 --source sample --ignore-eos --repeats 15 \
            --batch-size "${shape%x*}" --num-prompts "${shape%x*}" --context-len "${shape#*x}" \
            --max-new-tokens 512 "${more[@]}"
        ;;
    esac
done
