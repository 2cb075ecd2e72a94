# shellcheck shell=bash
# For scripts to source: runs that stop after LIMIT seconds and, called again, go on where they were.

# in_parts NAME FILE COMMAND...: with --resume where FILE is there; ends the script with status 75
# where the time was up
in_parts() {
    local name=$1 began=$2 again=() status=0
    shift 2
    [[ ! -f $began ]] || again=(--resume)
    timeout --signal=INT "$LIMIT" "$@" "${again[@]}" || status=$?
    if [[ $status == 124 || $status == 130 ]]; then
        echo "stage $name is not done: call it again" >&2
        exit 75
    fi
    return "$status"
}
