#!/usr/bin/env bash
# Bad memory accesses and races in the Triton kernels: compute-sanitizer over their tests.
# usage: scripts/h200_sanitize.sh OUTPUT_FOLDER [memcheck|racecheck|initcheck]...
# A test takes a hundred times longer: each file has SECONDS_EACH (120), KERNELS names some of them and
# SELECT some of their tests. No caching of memory, so that an access beyond a tensor is beyond an
# allocation; a graph cannot be captured so.
set -euo pipefail
out=$1
shift
mkdir -p "$out"
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
kernels="paged_attention_triton paged_attention_scores_triton sparse_attention_triton selection_triton
    linear qkv mlp head sample accept_sampled iteration tree_attention page_bounds_triton
    cross_entropy ring_attention tree_growth iteration_tree"
status=0
for tool in "${@:-memcheck}"; do
    for name in ${KERNELS:-$kernels}; do
        log="$out/$tool.$name.txt"
        if timeout "${SECONDS_EACH:-120}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
            --kernel-regex kns=_ --log-file "$log" \
            python3 -m pytest -q -x -p no:cacheprovider "tests/kernels/test_$name.py" \
            --maxfail 1 -k "${SELECT:-not compiles and not captured}" >"$log.pytest" 2>&1; then
            echo "$tool $name: clean"
        else
            code=$?
            echo "$tool $name: exit $code, $(tail -n 1 "$log" 2>/dev/null)"
            # 124: the time was up, without an error so far
            [[ $code == 124 ]] || status=1
        fi
    done
done
exit $status
