#!/usr/bin/env bash
# Stages of the scripts beside this one, unattended: group after group, the stages of a group side by side.
# usage: scripts/h200_stages.sh MODEL_FOLDER INPUTS_FOLDER OUTPUT_FOLDER GROUP...
#   GROUP   STAGE[+STAGE...][:SECONDS], at most so long each (600)
#   STAGE   engine.STAGE, methods.STAGE, plugin.STAGE, load.STAGE, tune.STAGE, longspec.STAGE, all.STAGE: of
#           h200_engine.sh and so on; kernels; analyze; tests.FILE, below tests/; memcheck.KERNEL and
#           racecheck.KERNEL, of h200_sanitize.sh; compile.BATCH: a short run of random weights, for the
#           compiled kernels that it leaves (several batches side by side compile on as many cores);
#           wait.FILE: until that file is there
# What is timed belongs into a group of its own. INPUTS_FOLDER holds those of frozen.jsonl, measure.jsonl,
# long.jsonl (scripts/prompt_lists.py) and tune.jsonl that the stages read, and the datasets' files; RECIPE is
# LongSpec's.
# OUTPUT_FOLDER/log has each stage's output, and in stages.txt when each began and how it ended.
set -euo pipefail
model=$(realpath "$1") inputs=$(realpath "$2") out=$(realpath -m "$3")
shift 3
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LONG=${LONG:-$inputs/long.jsonl}
mkdir -p "$out/log"

note() {
    echo "$(date +%T) $*" | tee -a "$out/log/stages.txt"
}

stage() { # KIND.STAGE
    local kind=${1%%.*} rest=${1#*.}
    case $kind in
    engine | methods) bash "scripts/h200_$kind.sh" "$model" "$inputs/frozen.jsonl" "$out/$kind" "$rest" ;;
    plugin) bash scripts/h200_plugin.sh "$model" "$inputs/frozen.jsonl" "$out/plugin" "$rest" ;;
    load) bash scripts/h200_load.sh "$model" "$inputs/measure.jsonl" "$out/load" "$rest" ;;
    tune) bash scripts/h200_tune.sh "$model" "$inputs/tune.jsonl" "$out/tune" "$rest" ;;
    longspec) bash scripts/h200_longspec.sh "$model" "$RECIPE" "$out/longspec" "$rest" ;;
    all) bash scripts/h200_all.sh "$model" "$inputs" "$out/all" "$rest" ;;
    kernels) python3 -m specbench kernels --output "$out/kernels" ;;
    analyze)
        python3 -m specbench analyze vegas --model "$model" --dataset "file:$inputs/frozen.jsonl" \
            --batch-size 16 --num-prompts 16 --context-len 20000 --max-new-tokens 256 \
            --output "$out/analyze"
        ;;
    tests) python3 -m pytest -q -x -p no:cacheprovider "tests/$rest" ;;
    memcheck | racecheck) KERNELS=$rest bash scripts/h200_sanitize.sh "$out/sanitize" "$kind" ;;
    wait) until [[ -e $rest ]]; do sleep 0.5; done ;;
    compile)
        python3 -m specbench run --model "dummy:$(basename "$model")" --dataset longbench-v2 \
            --source sample --ignore-eos --batch-size "$rest" --num-prompts "$rest" \
            --context-len 2048,20000 --max-new-tokens 256 --repeats 1 --reuse-prompts \
            --method "${METHODS:-vegas}" ${METHODS:+--variant all} --output "$out/compile/$rest"
        ;;
    *)
        echo "unknown stage $1" >&2
        return 2
        ;;
    esac
}

watched() { # STAGE SECONDS
    local began=$SECONDS status=0
    note "began $1"
    timeout --signal=INT --kill-after=20 "$2" bash scripts/h200_stages.sh "$model" "$inputs" "$out" "only:$1" \
        >"$out/log/${1//\//+}.txt" 2>&1 || status=$?
    note "ended $1: status $status after $((SECONDS - began)) s"
    return "$status"
}

if [[ ${1:-} == only:* ]]; then
    stage "${1#only:}"
    exit
fi
failed=0
for group in "$@"; do
    limit=600 names=$group
    [[ $group != *:* ]] || limit=${group##*:} names=${group%:*}
    running=()
    for name in ${names//+/ }; do
        watched "$name" "$limit" &
        running+=($!)
    done
    for job in "${running[@]}"; do wait "$job" || failed=1; done
done
exit $failed
