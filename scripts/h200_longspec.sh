#!/usr/bin/env bash
# A LongSpec draft on a GPU: text, training in parts, ablations, and runs on code that it never saw.
# usage: scripts/h200_longspec.sh MODEL RECIPE OUTPUT_FOLDER STAGE...
# stages, each of which may be a call of its own:
#   text                   text and prompts from the installed packages, or those of the folder CORPUS
#                          (recipes/longspec/corpus.txt); HOLD_OUT names packages that are not trained on
#   own, own.chat          what the target writes itself, beside the text (five minutes; again for more)
#   encode                 the text as tokens
#   train                  one part of the training; again until it says that all steps are done
#   ablation.NAME          150 short steps, 40 long ones; NAME is all, no-anchor-offset or no-flash-noise
#   compare                all against no-anchor-offset, at both places of large positions, and the
#                          steps of the long stage alone
#   al.NAME                AL of the draft of an ablation at 8 x 8,192
#   BATCHxCONTEXT[.GAMMA]  trees (TREE_SHAPE), or chains of GAMMA tokens, beside autoregressive decoding
#                          and vLLM (unless METHODS names others); B and CONTEXT may be lists: B,BxC,C
set -euo pipefail
model=$1 recipe=$2 out=$3
shift 3
mkdir -p "$out"

train() { # folder, options
    resume=()
    [[ ! -f $out/$1/checkpoint.safetensors ]] || resume=(--resume)
    python3 -m specbench train longspec --config "$recipe" --model "$model" \
        --data "$out/text/train" --eval-data "$out/text/eval" --output "$out/$1" \
        "${resume[@]}" "${@:2}"
}

ablate() { # name, options
    mkdir -p "$out/ablation/$1"
    [[ ! -d $out/train/tokens || -d $out/ablation/$1/tokens ]] ||
        cp -r "$out/train/tokens" "$out/ablation/$1/tokens"
    train "ablation/$1" --short-steps 150 --short-batch 64 --long-steps 40 --long-batch 4 \
        --eval-every 10 "${@:2}"
}

for stage in "$@"; do
    case $stage in
    text)
        # by default those that scripts/prompt_lists.py makes prompts of
        hold_out=()
        for package in ${HOLD_OUT:-networkx pandas matplotlib}; do hold_out+=(--hold-out "$package"); done
        python3 scripts/code_text.py "$out/text" --megabytes 600 --prompts 24 "${hold_out[@]}" \
            ${CORPUS:+--root "$CORPUS"}
        ;;
    own | own.chat)
        chat=()
        [[ $stage != *.chat ]] || chat=(--chat)
        python3 scripts/target_text.py "$model" "$out/text/train/code.jsonl" \
            "$out/text/train/$stage.jsonl" "${chat[@]}"
        ;;
    encode) train train --encode-only ;;
    train) train train ;;
    ablation.all) ablate all ;;
    ablation.no-anchor-offset) ablate no-anchor-offset --no-anchor-offset ;;
    ablation.no-flash-noise) ablate no-flash-noise --no-flash-noise ;;
    compare)
        for place in far long; do
            python3 scripts/longspec_ablation.py "$out"/ablation/{all,no-anchor-offset} \
                --place $place --output "$out/ablation/$place"
        done
        python3 scripts/longspec_ablation.py "$out"/ablation/{all,no-anchor-offset} \
            --place long --after 150 --output "$out/ablation/long-stage"
        ;;
    al.*)
        python3 -m specbench run --model "$model" --method longspec \
            --draft-weights "$out/ablation/${stage#*.}/draft" --no-chat-template \
            --dataset "file:$out/text/prompts.jsonl" --batch-size 8 --num-prompts 16 \
            --context-len 8192 --max-new-tokens 256 --repeats 1 --reuse-prompts \
            --output "$out/ablation/al-${stage#*.}"
        ;;
    *)
        shape=${stage%.*} drafts=(--drafts tree --tree-shape "${TREE_SHAPE:-4,16,16,16,16}")
        [[ $stage != *.* ]] || drafts=(--drafts chain --gamma "${stage#*.}")
        methods=${METHODS:-longspec,vllm} vllm=()
        [[ $methods != *vllm* ]] || vllm=(--vllm-arg "max_model_len=${MAX_MODEL_LEN:-24832}")
        python3 -m specbench run --model "$model" --method "$methods" "${vllm[@]}" \
            --draft-weights "${DRAFT:-$out/train/draft}" "${drafts[@]}" \
            --dataset "file:$out/text/prompts.jsonl" --no-chat-template \
            --batch-size "${shape%x*}" --num-prompts "${PROMPTS:-8}" \
            --context-len "${shape#*x}" --max-new-tokens 256 --repeats 3 --reuse-prompts \
            --output "$out/${stage//,/+}"
        ;;
    esac
done
