#!/usr/bin/env bash
# Vegas beside the other methods that need no training, on one machine, in parts that stand alone.
# usage: scripts/h200_methods.sh MODEL_FOLDER PROMPTS_JSONL OUTPUT_FOLDER STAGE...
# stages:
#   equal               all of them at the same kept ratio and gamma: AL and selection
#   best.METHOD[.VARIANT]  one of them tuned on half of the prompts
#   best                all that were tuned, and stock vLLM, interleaved on the other half
#   figures             what results/h200/figures.yaml needs of equal and best
set -euo pipefail
model=$1 prompts=$2 out=$3
shift 3
batch=${BATCH:-16}
common=(--model "$model" --batch-size "$batch" --context-len 20000 --max-new-tokens 512)
list=(--dataset "file:$prompts")
mkdir -p "$out"

for stage in "$@"; do
    case $stage in
    equal)
        python3 -m specbench run "${common[@]}" "${list[@]}" \
            --method vegas,lookup,magicdec,specextend --variant all --collect all \
            --kept-ratio 0.05 --gamma 6 --num-prompts 64 --repeats 1 --reuse-prompts \
            --output "$out/equal"
        ;;
    best.*)
        IFS=. read -r _ method variant <<<"$stage"
        options=(--method "$method" --gammas "${GAMMAS:-4,6,8}")
        [[ $method == lookup ]] || options+=(--ratios "${RATIOS:-0.02,0.05,0.1}")
        [[ -z ${variant:-} ]] || options+=(--variant "$variant")
        resume=()
        [[ ! -f $out/$stage/study.journal ]] || resume=(--resume)
        python3 -m specbench tune "${common[@]}" "${list[@]}" "${options[@]}" \
            --num-prompts 32 --held-out 16 --repeats 3 --output "$out/$stage" "${resume[@]}"
        ;;
    best)
        tuned=()
        for folder in "$out"/best.*; do tuned+=(--tuned "$folder"); done
        half=$out/held-out/$(basename "$prompts")
        mkdir -p "$out/held-out"
        sed -n 33,64p "$prompts" >"$half"
        python3 -m specbench run "${common[@]}" --dataset "file:$half" "${tuned[@]}" \
            --method vllm --vllm-arg max_model_len=24832 --num-prompts 32 --reuse-prompts \
            --output "$out/best"
        ;;
    figures)
        equal() { # figure, arm
            local name=$1 arm=$2
            echo "- {id: al.$name, record: methods/equal, table: acceptance.csv, where: {arm: $arm}," \
                "column: spec_decode_acceptance_length, unit: tokens}"
            echo "- {id: overhead.$name, record: methods/equal, table: overhead.csv, where: {arm: $arm}," \
                "column: selection_percent, scale: 0.01, unit: fraction}"
        }
        best() { # figure, arm
            local name=$1 arm=$2 id column
            for id in speedup:vllm over_ar:autoregressive; do
                column=speedup_over_${id#*:}
                echo "- {id: ${id%:*}.$name, record: methods/best, table: throughput.csv," \
                    "where: {arm: $arm-tuned}, column: $column, low: ${column}_low," \
                    "high: ${column}_high, unit: x}"
            done
        }
        for name in vegas lookup magicdec-stream magicdec-snapkv magicdec-quest; do
            equal $name $name
            best $name $name
        done
        equal specextend specextend-cheap
        best specextend specextend
        ;;
    *)
        echo "unknown stage $stage" >&2
        exit 2
        ;;
    esac
done
