#!/usr/bin/env bash
# results/h200/plugin: Vegas inside stock vLLM, on one machine, in parts that stand alone.
# usage: scripts/h200_plugin.sh MODEL_FOLDER PROMPTS_JSONL OUTPUT_FOLDER STAGE...
# stages: main.B (batch B: our engine's Vegas, vLLM as it comes, the plug-in, vLLM on V1 without
# overlap), stream.B (MagicDec's stream likewise), sampled.B, serve (200 mixed requests at 32 through
# the OpenAI server), preempt (the same with KV for few), tp2 (two GPUs beside one), figures (what
# results/h200/figures.yaml needs of main.16 and main.64)
set -euo pipefail
model=$1 prompts=$2 out=$3
shift 3
gamma=${GAMMA:-8} ratio=${RATIO:-0.05} length=24832
proposer=specbench.integrations.vllm.VegasProposer
mkdir -p "$out"

bench() { # folder, options
    python3 -m specbench run --model "$model" --gamma "$gamma" --output "$out/$1" \
        --host engine,vllm --vllm-arg max_model_len=$length "${@:2}"
}

long() { # batch, options: real prompts, greedy unless told otherwise
    local batch=$1
    echo --dataset "file:$prompts" --batch-size "$batch" --num-prompts 64 \
        --context-len 20000 --max-new-tokens 512 "${@:2}"
}

serve() { # file, options of vllm serve
    PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" python3 scripts/serve_mixed.py \
        "$model" "$prompts" "$out/$1.json" \
        --requests 200 --concurrency 32 --max-model-len $length -- \
        --attention-backend CUSTOM --max-num-seqs 64 --max-cudagraph-capture-size 576 \
        --speculative-config "{\"model\": \"$proposer\", \"num_speculative_tokens\": $gamma}" \
        --additional-config "{\"specbench\": {\"kept_ratio\": $ratio, \"stats\": \"$out/$1.stats.json\"}}" \
        "${@:2}"
}

for stage in "$@"; do
    size=${stage#*.}
    case $stage in
    main.*)
        # shellcheck disable=SC2046
        bench "main-$size" --method vegas,vllm --kept-ratio "$ratio" $(long "$size")
        ;;
    stream.*)
        # shellcheck disable=SC2046
        bench "stream-$size" --method magicdec,vllm --kept-ratio "$ratio" $(long "$size")
        ;;
    sampled.*)
        # shellcheck disable=SC2046
        bench "sampled-$size" --method vegas,vllm --kept-ratio "$ratio" \
            $(long "$size" --temperature 0.6 --top-p 0.95 --top-k 20)
        ;;
    serve) serve serve ;;
    # 6,000 blocks of 16 tokens: four or five of the longest requests
    preempt) serve preempt --num-gpu-blocks-override 6000 ;;
    tp2) serve tp2 --tensor-parallel-size 2 ;;
    figures)
        for batch in 16 64; do
            for over in speedup:vllm over_v1sync:vllm-v1-sync; do
                echo "- {id: plugin.${over%:*}.${batch}x20000, record: plugin/main-$batch," \
                    "where: {arm: vllm-vegas}, over: {arm: ${over#*:}}, column: output_throughput, unit: x}"
            done
        done
        echo "- {id: plugin.al_ratio, record: plugin/main-16, where: {arm: vllm-vegas}," \
            "over: {arm: vegas}, column: acceptance_length, unit: x}"
        ;;
    *)
        echo "unknown stage $stage" >&2
        exit 2
        ;;
    esac
done
