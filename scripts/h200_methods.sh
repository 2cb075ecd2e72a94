#!/usr/bin/env bash
# Vegas beside the other methods that need no training, on one machine, in parts that stand alone.
# usage: scripts/h200_methods.sh MODEL_FOLDER PROMPTS_JSONL OUTPUT_FOLDER STAGE...
# stages:
#   equal               all of them at the same kept ratio and gamma: AL and selection
#   best.METHOD[.VARIANT]  one of them tuned on half of the prompts, its best measured on the other half
#   vllm                the same half by stock vLLM
set -euo pipefail
model=$1 prompts=$2 out=$3
shift 3
batch=${BATCH:-16}
common=(--model "$model" --dataset "file:$prompts" --batch-size "$batch" --context-len 20000
    --max-new-tokens 512)
mkdir -p "$out"

for stage in "$@"; do
    case $stage in
    equal)
        python3 -m specbench run "${common[@]}" --method vegas,lookup,magicdec,specextend \
            --variant all --collect all --kept-ratio 0.05 --gamma 6 --num-prompts 64 \
            --repeats 1 --reuse-prompts --output "$out/equal"
        ;;
    best.*)
        IFS=. read -r _ method variant <<<"$stage"
        options=(--method "$method" --gammas "${GAMMAS:-4,6,8}")
        [[ $method == lookup ]] || options+=(--ratios "${RATIOS:-0.02,0.05,0.1}")
        [[ -z ${variant:-} ]] || options+=(--variant "$variant")
        resume=()
        [[ ! -f $out/$stage/study.journal ]] || resume=(--resume)
        python3 -m specbench tune "${common[@]}" "${options[@]}" --num-prompts 32 --held-out 32 \
            --repeats 3 --output "$out/$stage" "${resume[@]}"
        ;;
    vllm)
        python3 -m specbench run "${common[@]}" --method vllm --vllm-arg max_model_len=24832 \
            --num-prompts 64 --reuse-prompts --output "$out/vllm"
        ;;
    *)
        echo "unknown stage $stage" >&2
        exit 2
        ;;
    esac
done
