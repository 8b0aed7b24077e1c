#!/usr/bin/env bash
# Deploys real containers: the docker backend with Podman's engine, then the kubernetes backend's manifest with
# `podman kube play`.
#
#   scripts/container-check.sh FOLDER
#
# Needs Debian 12 and root. FOLDER is the folder of an earlier `scripts/image-check.sh FOLDER`, which holds the image.
# That script runs first if there is no image. The commands are run with the image's own program, all on this machine.
# The image is kept, and everything else is removed.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${1:?a folder is needed, as scripts/image-check.sh keeps one}
mkdir -p "$work"
work=$(realpath "$work")
# shellcheck source=scripts/podman.sh
. scripts/podman.sh

readonly KEY=canary-api-key TOKEN=hf_canary_token

main() {
    install_tools
    configure_podman
    pod image exists $IMAGE || scripts/image-check.sh "$work"
    trap clean_up EXIT
    start_engine
    check_life
    check_restarts
    check_secrets
    check_faults
    check_manifest
    echo "All checks of containers passed."
}

clean_up() {
    local status=$?
    if [ $status != 0 ]; then
        pod ps --all || true
        pod logs candlepower-boxed 2> /dev/null | tail -n 30 || true
        candle events boxed || true
    fi
    pod pod rm --force --all > /dev/null 2>&1 || true
    pod rm --force --all --volumes > /dev/null 2>&1 || true
    pod volume rm --force candlepower > /dev/null 2>&1 || true
    if [ -n "${engine:-}" ]; then
        kill "$engine" 2> /dev/null || true
    fi
    rm -rf --one-file-system "$work/state" "$work/play" "$work/engine.sock" "$work/candlepower"
}

# Starts the engine at a socket in a folder of its own. The client is the image's own program.
start_engine() {
    pod rm --force candlepower-program > /dev/null 2>&1 || true
    pod create --name candlepower-program $IMAGE > /dev/null
    pod cp candlepower-program:/usr/local/bin/candlepower "$work/candlepower"
    pod rm candlepower-program > /dev/null
    # Not through the function `pod`: its process id would be that of a shell.
    podman --root "$work/storage" --runroot "$work/run" system service --time=0 "unix://$work/engine.sock" \
        > "$work/engine.log" 2>&1 &
    engine=$!
    export DOCKER_HOST=unix://$work/engine.sock XDG_STATE_HOME=$work/state
    unset HF_TOKEN HF_ENDPOINT CANDLEPOWER_API_KEY CANDLEPOWER_BACKEND CANDLEPOWER_IMAGE
    wait_for "the engine" candle ls --backend docker
}

candle() {
    "$work/candlepower" "$@"
}

# boxed NAME FLAG..
boxed() {
    local name=$1
    shift
    candle deploy demo --name "$name" --backend docker --image $IMAGE --memory 2Gi --timeout $START_SECONDS "$@"
}

check_life() {
    boxed boxed
    ask "$(url boxed)" | grep -q '"completion_tokens":4' || fail "not a completion"
    [ "$(candle logs boxed --tail 5 | wc -l)" = 5 ] || fail "not 5 lines of log"
    candle logs boxed | grep -q 'ready: http://' || fail "the log does not say that it is ready"
    [ "$(candle ls --backend docker --json | grep -c '"name": "boxed"')" = 1 ] || fail "it is not listed"
    [ "$(pod inspect --format '{{.HostConfig.Memory}} {{.HostConfig.ShmSize}}' candlepower-boxed)" = \
        "2147483648 536870912" ] || fail "memory and shared memory differ from the parameters"
    boxed boxed > /dev/null
    expect 4 NAME_IN_USE boxed boxed --max-model-len 512
    echo "A container answers, is found again, and keeps its name"
}

check_restarts() {
    local url pid before follower
    url=$(url boxed)
    before=$(pid)
    candle restart boxed > /dev/null
    [ "$(url boxed)" = "$url" ] || fail "the address has changed"
    pid=$(pid)
    [ "$pid" != "$before" ] || fail "it was not started again"
    candle logs boxed --follow --tail 1 > "$work/followed" &
    follower=$!
    wait_for "the log" grep -q 'ready: http://' "$work/followed"
    kill -KILL "$pid"
    wait_for "the engine to start it again" is_ready_after boxed 1
    wait_for "the kill among the events" tells_of_kill
    ask "$url" | grep -q '"completion_tokens":4' || fail "not a completion"
    candle delete boxed
    wait "$follower" || fail "the log was not followed to its end"
    grep -q 'listening on' "$work/followed" || fail "the log was not followed over the restart"
    rm "$work/followed"
    [ -z "$(pod ps --all --quiet)" ] || fail "a container is left"
    expect 3 NOT_FOUND candle status boxed --backend docker
    echo "Killed, it is started again at its address; deleted, it leaves nothing"
}

check_secrets() {
    local address status
    HF_TOKEN=$TOKEN CANDLEPOWER_API_KEY=$KEY boxed boxed > "$work/said"
    address=$(url boxed)
    status=$(curl -s -o /dev/null -w '%{http_code}' "$address/v1/models")
    [ "$status" = 401 ] || fail "without the key the answer is $status"
    candle restart boxed >> "$work/said"
    curl -sf -H "Authorization: Bearer $KEY" "$address/v1/models" > /dev/null || fail "the key is not known after a restart"
    candle logs boxed >> "$work/said"
    pod inspect candlepower-boxed >> "$work/said"
    tr '\0' ' ' < "/proc/$(pid)/cmdline" >> "$work/said"
    ! grep canary "$work/said" || fail "a secret is shown"
    ! grep -rq canary "$work/state" 2> /dev/null || fail "a secret is kept in a file"
    rm "$work/said"
    candle delete boxed > /dev/null
    echo "Secrets reach the server, over a restart too, and the engine does not show them"
}

check_faults() {
    local port=45991
    expect 2 VALIDATION_ERROR candle deploy demo --name x --backend docker --image localhost/nowhere:1
    expect 1 "BLAZE_NONSENSE is not known" boxed x --env BLAZE_NONSENSE=1
    boxed boxed --port $port > /dev/null
    expect 1 "port $port of this machine is taken" boxed x --port $port
    candle delete boxed > /dev/null
    expect 6 RESOURCE_UNAVAILABLE boxed x --gpu-models NoSuchGPU
    [ -z "$(pod ps --all --quiet)" ] || fail "a container is left"
    echo "Containers that cannot run are refused with a reason, and leave nothing"
}

# Runs the Deployment of `--dry-run` in a network namespace of its own, because Podman publishes its port on all
# addresses.
check_manifest() {
    mkdir -p "$work/play"
    candle deploy demo --name demo --backend kubernetes --gpu-count 0 --image $IMAGE --memory 2Gi --dry-run \
        > "$work/play/demo.yaml"
    export -f play pod wait_for fail ask
    export work START_SECONDS
    (cd "$work/play" && unshare --net bash -euc play)
    [ "$(pod inspect --format '{{.HostConfig.Memory}} {{.HostConfig.ReadonlyRootfs}}' demo-pod-0-server)" = \
        "2147483648 true" ] || fail "the pod differs from the manifest"
    echo "The manifest of the kubernetes backend starts with podman kube play, and answers"
}

play() {
    ip link set lo up
    pod kube play demo.yaml > play.log 2>&1 || fail "$(cat play.log)"
    wait_for "the pod to be healthy" curl -sf http://127.0.0.1:8000/health
    ask http://127.0.0.1:8000 | grep -q '"completion_tokens":4' || fail "not a completion"
}

url() {
    candle status "$1" --backend docker | awk '$1 == "url" { print $2 }'
}

pid() {
    pod inspect --format '{{.State.Pid}}' candlepower-boxed
}

# is_ready_after NAME RESTARTS
is_ready_after() {
    candle status "$1" | awk -v restarts="$2" \
        '$1 == "phase" { phase = $2 } $1 == "restarts" { count = $2 } END { exit !(phase == "ready" && count == restarts) }'
}

tells_of_kill() {
    candle events boxed | grep 'ended with status 137'
}

# ask URL
ask() {
    curl -sS --max-time 60 "$1/v1/completions" -H 'content-type: application/json' \
        -d '{"model": "demo", "prompt": "2 + 2 =", "max_tokens": 4, "temperature": 0}'
}

# expect STATUS WORDS COMMAND..
expect() {
    local status=$1 words=$2 found=0
    shift 2
    "$@" > "$work/refused" 2>&1 || found=$?
    [ "$found" = "$status" ] || fail "$*: the exit status is $found, not $status: $(cat "$work/refused")"
    grep -q "$words" "$work/refused" || fail "$*: $(cat "$work/refused")"
    rm "$work/refused"
}

main
