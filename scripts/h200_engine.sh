#!/usr/bin/env bash
# results/h200/engine: autoregressive, Vegas and vLLM on one machine, in parts that stand alone.
# usage: scripts/h200_engine.sh MODEL_FOLDER PROMPTS_JSONL OUTPUT_FOLDER STAGE...
# stages: screen (the candidates, by the baseline alone), grid.B, main.B and sampled.B (batch B,
# vLLM beside), step.BxCONTEXT (step times of random prompts; --ignore-eos)
set -euo pipefail
model=$1 prompts=$2 out=$3
shift 3
vegas=(--gamma "${GAMMA:-6}" --kept-ratio "${RATIO:-0.05}")
[[ -z ${NORMALISER:-} ]] || vegas+=(--normaliser "$NORMALISER")
vllm=(--vllm-arg max_model_len=24832)
mkdir -p "$out"

bench() { # folder, options
    python3 -m specbench run --model "$model" --reuse-prompts --output "$out/$1" "${@:2}"
}

long() { # batch, options: real prompts, greedy unless told otherwise
    local batch=$1 count=64
    [[ $batch != 1 ]] || count=8
    echo --dataset "file:$prompts" --batch-size "$batch" --num-prompts "$count" \
        --context-len 20000 --max-new-tokens 512 "${@:2}"
}

for stage in "$@"; do
    size=${stage#*.}
    case $stage in
    screen)
        bench screen --method autoregressive --dataset "file:$prompts" --batch-size 48 \
            --num-prompts 1000 --context-len 20000 --max-new-tokens 512 --repeats 1
        ;;
    grid.*)
        for g in 4 6 8; do
            for r in 0.03 0.05 0.1; do
                # shellcheck disable=SC2046
                bench "grid-$size-g$g-r$r" --method vegas --gamma $g --kept-ratio $r \
                    --repeats 1 $(long "$size")
            done
        done
        ;;
    main.*)
        # shellcheck disable=SC2046
        bench "main-$size" --method vegas,vllm,lookup "${vegas[@]}" "${vllm[@]}" $(long "$size")
        ;;
    sampled.*)
        # shellcheck disable=SC2046
        bench "sampled-$size" --method vegas,vllm "${vegas[@]}" "${vllm[@]}" $(long "$size" --temperature 0.6 --top-p 0.95 --top-k 20)
        ;;
    step.*)
        bench "step-$size" --method vllm "${vllm[@]}" --dataset longbench-v2 --source sample \
            --ignore-eos --repeats 5 --batch-size "${size%x*}" --num-prompts "${size%x*}" \
            --context-len "${size#*x}" --max-new-tokens 256
        ;;
    *)
        echo "unknown stage $stage" >&2
        exit 2
        ;;
    esac
done
