#!/usr/bin/env bash
# results/h200/engine: autoregressive, Vegas and vLLM on one machine, in parts that stand alone.
# usage: scripts/h200_engine.sh MODEL_FOLDER PROMPTS_JSONL OUTPUT_FOLDER STAGE...
# stages:
#   screen        the candidates, by the baseline alone
#   grid.B        gammas by ratios, without vLLM
#   main.B, sampled.B   at batch B or batches B,B, vLLM beside; alone.B without it
#   step.BxCONTEXT      step times of random prompts, vLLM beside (--ignore-eos)
#   load.BxCONTEXT      real prompts cut to CONTEXT, vLLM beside: where speculation stops paying
#   long          four prompts of 100,000 tokens under YaRN; LONG names their file
#   eight.BxCONTEXT     the shape of Qwen3-8B with random weights, vLLM beside
#   of the last four, B and CONTEXT may be lists: each load is a folder in that of the stage
#   roofline      the same shape, 4 x 100,000: Vegas's device time against its bytes
# GAMMA, RATIO, NORMALISER and QUERIES set Vegas; without them its defaults hold. METHODS names other
# methods for main and load.
set -euo pipefail
model=$1 prompts=$2 out=$3
shift 3
vegas=()
[[ -z ${GAMMA:-} ]] || vegas+=(--gamma "$GAMMA")
[[ -z ${RATIO:-} ]] || vegas+=(--kept-ratio "$RATIO")
[[ -z ${QUERIES:-} ]] || vegas+=(--queries "$QUERIES")
[[ -z ${NORMALISER:-} ]] || vegas+=(--normaliser "$NORMALISER")
vllm=(--vllm-arg max_model_len=24832)
mkdir -p "$out"

bench() { # folder, options
    python3 -m specbench run --model "$model" --reuse-prompts --output "$out/${1//,/+}" "${@:2}"
}

real() { # folder, batch, options: real prompts, greedy unless told otherwise
    local count=64
    [[ $2 != 1 ]] || count=8
    bench "$1" --dataset "file:$prompts" --batch-size "$2" --num-prompts "$count" \
        --context-len 20000 --max-new-tokens 512 "${vegas[@]}" "${@:3}"
}

random() { # folder, BATCHxCONTEXT, options: a prompt a row, to the length limit
    bench "$1" --dataset longbench-v2 --source sample --ignore-eos --batch-size "${2%x*}" \
        --num-prompts "${2%%[,x]*}" --context-len "${2#*x}" "${@:3}"
}

eight=(--rope-scaling yarn:4)
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
                GAMMA='' real "grid-$size-g$g-r$r" "$size" --method vegas --gamma $g \
                    --kept-ratio $r --repeats 1
            done
        done
        ;;
    alone.*) real "alone-$size" "$size" --method vegas,lookup ;;
    main.*)
        methods=${METHODS:-vegas,vllm,lookup}
        [[ $methods == *vllm* ]] || vllm=()
        real "main-$size" "$size" --method "$methods" "${vllm[@]}"
        ;;
    sampled.*)
        real "sampled-$size" "$size" --method vegas,vllm "${vllm[@]}" \
            --temperature 0.6 --top-p 0.95 --top-k 20
        ;;
    step.*)
        random "step-$size" "$size" --method vllm "${vllm[@]}" --repeats 5 --max-new-tokens 256
        ;;
    load.*)
        bench "load-$size" --dataset "file:$prompts" --batch-size "${size%x*}" --num-prompts 8 \
            --context-len "${size#*x}" --max-new-tokens 256 --method "${METHODS:-vegas,vllm}" \
            "${vegas[@]}"
        ;;
    long)
        bench long --dataset "file:$LONG" --batch-size 4 --num-prompts 4 --context-len 100000 \
            --max-new-tokens 512 --rope-scaling yarn:4 --method vegas "${vegas[@]}"
        ;;
    eight.*)
        model=dummy:qwen3-8b random "eight-$size" "$size" "${eight[@]}" --method vllm \
            --vllm-arg max_model_len=100864 --repeats 3 --max-new-tokens 128
        ;;
    roofline)
        model=dummy:qwen3-8b random roofline 4x100000 "${eight[@]}" --method vegas --gamma 6 \
            --kept-ratio 0.07 ${NORMALISER:+--normaliser "$NORMALISER"} --repeats 3 \
            --max-new-tokens 128
        ;;
    *)
        echo "unknown stage $stage" >&2
        exit 2
        ;;
    esac
done
