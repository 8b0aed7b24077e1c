#!/usr/bin/env bash
# Deploys to a real Kubernetes control plane: API server, controllers and scheduler, built from Debian's sources.
#
#   scripts/kubernetes-check.sh FOLDER [PROGRAM]
#
# Needs Debian 12 and root. FOLDER keeps the build (2 GB; half an hour on two cores the first time). PROGRAM is a
# candlepower with the feature `kubernetes`; without it a release build is made. There is no kubelet: this script
# reports the states of pods in its place, and the server of a pod runs on this machine. Everything that was started
# is stopped at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${1:?a folder is needed, which keeps the control plane that is built}
mkdir -p "$work"
work=$(realpath "$work")
program=${2:-}
# shellcheck source=scripts/podman.sh
. scripts/podman.sh

readonly BINARIES="kube-apiserver kube-controller-manager kube-scheduler"
readonly API=https://127.0.0.1:46443 ETCD=http://127.0.0.1:46379 ETCD_PEERS=http://127.0.0.1:46380
readonly TOKEN=the-token-of-this-check CANARY=hf_canary_token
readonly DEPLOYMENTS=/apis/apps/v1/namespaces/models/deployments CORE=/api/v1/namespaces/models

main() {
    if [ -z "$program" ]; then
        cargo build --release --locked --features full
        program=${CARGO_TARGET_DIR:-target}/release/candlepower
    fi
    program=$(realpath "$program")
    build_control_plane
    trap clean_up EXIT
    start_control_plane
    check_refusals
    check_life
    check_names
    check_manifests
    echo "A real API server, its controllers and its scheduler agree with the kubernetes backend."
}

# Debian's package can be compiled by its Go 1.19, except for the library reflect2: the package's version of it
# crashes with this Go. Debian has a newer version, which replaces it.
build_control_plane() {
    local binary missing=0
    for binary in $BINARIES; do
        [ -x "$work/$binary" ] || missing=1
    done
    if [ $missing = 0 ] && command -v etcd > /dev/null; then
        return
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        golang-1.19-go golang-github-modern-go-reflect2-dev etcd-server dpkg-dev make rsync curl > "$work/apt.log"
    mkdir -p "$work/lists"
    sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$work/source.sources"
    local apt=(-qq -o "Dir::Etc::sourcelist=$work/source.sources" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists")
    apt-get update "${apt[@]}"
    rm -rf "$work/source" "$work"/kubernetes_*
    (cd "$work" && apt-get source --download-only "${apt[@]}" kubernetes && dpkg-source --no-check -x kubernetes_*.dsc source)
    rm -rf "$work/source/vendor/github.com/modern-go/reflect2"
    cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 "$work/source/vendor/github.com/modern-go/"
    (
        cd "$work/source"
        export PATH=/usr/lib/go-1.19/bin:$PATH CGO_ENABLED=0 GOCACHE=$work/go-cache GOPATH=$work/go
        for binary in $BINARIES; do
            make "WHAT=cmd/$binary"
            cp "_output/bin/$binary" "$work/"
        done
    )
    rm -rf "$work/source" "$work/go" "$work/go-cache"
}

start_control_plane() {
    rm -rf --one-file-system "$work/run"
    mkdir -p "$work/run"
    openssl genrsa -out "$work/run/key.pem" 2048 2> /dev/null
    echo "$TOKEN,check,check,system:masters" > "$work/run/tokens.csv"
    cat > "$work/run/kubeconfig" << END
apiVersion: v1
kind: Config
current-context: check
clusters: [{name: check, cluster: {server: "$API", insecure-skip-tls-verify: true}}]
users: [{name: check, user: {token: $TOKEN}}, {name: stranger, user: {token: wrong}}]
contexts:
  - {name: check, context: {cluster: check, user: check, namespace: models}}
  - {name: stranger, context: {cluster: check, user: stranger, namespace: models}}
END
    run etcd --data-dir "$work/run/etcd" --listen-client-urls $ETCD --advertise-client-urls $ETCD \
        --listen-peer-urls $ETCD_PEERS --initial-advertise-peer-urls $ETCD_PEERS --initial-cluster default=$ETCD_PEERS
    run "$work/kube-apiserver" --etcd-servers $ETCD --secure-port 46443 --cert-dir "$work/run/certificates" \
        --service-cluster-ip-range 10.96.0.0/24 --authorization-mode RBAC --token-auth-file "$work/run/tokens.csv" \
        --service-account-issuer https://check --service-account-key-file "$work/run/key.pem" \
        --service-account-signing-key-file "$work/run/key.pem"
    wait_for "the API server" ask /readyz
    run "$work/kube-controller-manager" --kubeconfig "$work/run/kubeconfig" --leader-elect=false \
        --service-account-private-key-file "$work/run/key.pem" --secure-port 0 --port 0
    run "$work/kube-scheduler" --kubeconfig "$work/run/kubeconfig" --leader-elect=false --secure-port 0 --port 0
    remove_ended_pods &
    started+=($!)
    export KUBECONFIG=$work/run/kubeconfig XDG_STATE_HOME=$work/run/state
    unset HF_TOKEN HF_ENDPOINT CANDLEPOWER_API_KEY CANDLEPOWER_BACKEND CANDLEPOWER_IMAGE
}

# run PROGRAM ARGUMENT..
run() {
    "$@" > "$work/run/$(basename "$1").log" 2>&1 &
    started+=($!)
}

clean_up() {
    local status=$?
    if [ $status != 0 ]; then
        tail -n 5 "$work"/run/*.log >&2 || true
    fi
    kill "${started[@]}" 2> /dev/null || true
    wait
    rm -rf --one-file-system "$work/run"
}

candle() {
    "$program" "$@"
}

# ask PATH [CURL'S FLAG..]
ask() {
    local path=$1
    shift
    curl --silent --show-error --fail-with-body --insecure --max-time 60 -H "Authorization: Bearer $TOKEN" "$API$path" "$@"
}

# chat FLAG..
chat() {
    candle deploy demo --name chat --backend kubernetes --gpu-count 0 --image candlepower:check --memory 1Gi "$@"
}

check_refusals() {
    expect 11 'namespaces "models" not found' chat --timeout 5
    ask /api/v1/namespaces -H 'content-type: application/json' -d '{"metadata": {"name": "models"}}' > /dev/null
    wait_for "the namespace's account" ask $CORE/serviceaccounts/default
    expect 11 Unauthorized chat --timeout 5 --context stranger
    expect 3 NOT_FOUND candle status chat --backend kubernetes
    [ "$(candle ls --backend kubernetes --json)" = "[]" ] || fail "there is something in an empty namespace"
    echo "A missing namespace and an unknown token are reported"
}

check_life() {
    local pod uid address
    HF_TOKEN=$CANARY expect 5 TIMEOUT chat --timeout 3 --keep-on-failure
    expect 0 "no node can take it" candle status chat --backend kubernetes
    for object in $DEPLOYMENTS/chat $CORE/secrets/chat $CORE/services/chat; do
        ask "$object" > /dev/null || fail "$object is missing"
    done
    ! ask $DEPLOYMENTS/chat | grep $CANARY || fail "a secret is in the Deployment"
    ! ask $CORE/services/chat | grep $CANARY || fail "a secret is in the Service"

    # A node without a kubelet. From here on this script reports the states of its pods.
    address=$(hostname --all-ip-addresses | awk '{ print $1 }')
    ask /api/v1/nodes -H 'content-type: application/json' -d '{"metadata": {"name": "here"}}' > /dev/null
    patch /api/v1/nodes/here/status '{"status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "10"},
        "capacity": {"cpu": "8", "memory": "64Gi", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True",
        "lastHeartbeatTime": "'"$(now)"'", "lastTransitionTime": "'"$(now)"'"}]}}'
    patch /api/v1/nodes/here '{"spec": {"taints": null}}'
    wait_for "the scheduler" is_bound
    pod=$(pods | head -n 1)
    candle serve demo --host "$address" --port 8000 > "$work/run/server.log" 2>&1 &
    started+=($!)
    wait_for "the server" curl -sf "http://$address:8000/health"
    container='{"name": "server", "image": "candlepower:check", "imageID": "x", "restartCount": 0'
    patch "$CORE/pods/$pod/status" '{"status": {"phase": "Running", "podIP": "'"$address"'", "containerStatuses":
        ['"$container"', "ready": false, "started": false, "state": {"running": {"startedAt": "'"$(now)"'"}}}]}}'
    expect 0 Provisioning candle status chat --backend kubernetes
    patch "$CORE/pods/$pod/status" '{"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime":
        "'"$(now)"'"}, {"type": "ContainersReady", "status": "True"}], "containerStatuses":
        ['"$container"', "ready": true, "started": true, "state": {"running": {"startedAt": "'"$(now)"'"}}}]}}'
    wait_for "the deployment to be ready" is_ready
    candle status chat --backend kubernetes
    HF_TOKEN=$CANARY chat > /dev/null || fail "the same deployment is not found again"

    uid=$(ask $DEPLOYMENTS/chat | uid_of)
    # The restart waits for the new pod, which nothing starts.
    timeout 5 "$program" restart chat --backend kubernetes > /dev/null || true
    [ "$(ask $DEPLOYMENTS/chat | uid_of)" = "$uid" ] || fail "a restart made another Deployment"
    wait_for "another pod" is_replaced "$pod"
    candle events chat --backend kubernetes > /dev/null
    candle delete chat --backend kubernetes > /dev/null
    wait_for "the collector" is_gone
    echo "Unschedulable, starting, ready, restarted, deleted: reported correctly, and nothing is left"
}

check_names() {
    local round won
    expect 5 TIMEOUT chat --timeout 1 --keep-on-failure
    expect 4 NAME_IN_USE chat --max-model-len 512
    candle delete chat --backend kubernetes > /dev/null
    wait_for "the collector" is_gone
    # Two clients deploy two specs at the same time. One gets the name, and the other an error.
    for round in 1 2 3; do
        chat --timeout 1 --keep-on-failure --max-model-len 512 > "$work/run/one" 2>&1 &
        one=$!
        chat --timeout 1 --keep-on-failure --max-model-len 1024 > "$work/run/two" 2>&1 &
        two=$!
        wait $one || true
        wait $two || true
        won=$(cat "$work/run/one" "$work/run/two" | grep -c NAME_IN_USE || true)
        [ "$won" = 1 ] || fail "round $round: $(cat "$work/run/one" "$work/run/two")"
        candle delete chat --backend kubernetes > /dev/null
        wait_for "the collector" is_gone
    done
    ask $DEPLOYMENTS -H 'content-type: application/json' -d '{"metadata": {"name": "chat"}, "spec": {"selector":
        {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers":
        [{"name": "c", "image": "i"}]}}}}' > /dev/null
    expect 11 "that candlepower has not made" chat --timeout 1
    ask $DEPLOYMENTS/chat -X DELETE > /dev/null
    wait_for "the collector" is_gone
    echo "One of two concurrent specs gets the name, and objects of other programs are left alone"
}

# Applies each document of configs/k8s like `kubectl apply --server-side`. The schema refuses unknown fields.
check_manifests() {
    local file document kind path
    for file in configs/k8s/*.yaml; do
        csplit --quiet --elide-empty-files --prefix "$work/run/part" "$file" '/^---$/' '{*}'
        for document in "$work"/run/part*; do
            kind=$(sed -n 's/^kind: //p' "$document")
            case $kind in
                Deployment) path=$DEPLOYMENTS ;;
                Service) path=$CORE/services ;;
                Secret) path=$CORE/secrets ;;
                PersistentVolumeClaim) path=$CORE/persistentvolumeclaims ;;
                "") continue ;;
                *) fail "$file: this script does not know where a $kind goes" ;;
            esac
            ask "$path/$(awk '$1 == "name:" { print $2; exit }' "$document")?fieldManager=check&force=true" -X PATCH \
                -H 'content-type: application/apply-patch+yaml' --data-binary "@$document" > "$work/run/said" \
                || fail "$file: $(cat "$work/run/said")"
        done
        rm "$work"/run/part*
    done
    echo "The manifests of configs/k8s are accepted unchanged"
}

patch() {
    ask "$1" -X PATCH -H 'content-type: application/strategic-merge-patch+json' -d "$2" > "$work/run/said" \
        || fail "$1: $(cat "$work/run/said")"
}

now() {
    date -u +%Y-%m-%dT%H:%M:%SZ
}

pods() {
    ask $CORE/pods | python3 -c '
import json, sys
for pod in json.load(sys.stdin)["items"]:
    print(pod["metadata"]["name"])'
}

uid_of() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)["metadata"]["uid"])'
}

is_bound() {
    ask $CORE/pods | grep -q '"nodeName": "here"'
}

is_ready() {
    candle status chat --backend kubernetes | grep -q 'ready  *1 of 1'
}

# Deletes pods that are terminating, as their kubelet would.
remove_ended_pods() {
    local pod
    while sleep 0.3; do
        for pod in $(ask $CORE/pods 2> /dev/null | python3 -c '
import json, sys
for pod in json.load(sys.stdin)["items"]:
    if "deletionTimestamp" in pod["metadata"]:
        print(pod["metadata"]["name"])' 2> /dev/null); do
            ask "$CORE/pods/$pod?gracePeriodSeconds=0" -X DELETE > /dev/null 2>&1 || true
        done
    done
}

# is_replaced POD
is_replaced() {
    [ -n "$(pods | grep --invert-match "$1")" ]
}

is_gone() {
    local object
    for object in $DEPLOYMENTS/chat $CORE/secrets/chat $CORE/services/chat; do
        ! ask "$object" > /dev/null 2>&1 || return 1
    done
    [ -z "$(pods)" ]
}

# expect STATUS WORDS COMMAND..
expect() {
    local status=$1 words=$2 found=0
    shift 2
    "$@" > "$work/run/refused" 2>&1 || found=$?
    [ "$found" = "$status" ] || fail "$*: the exit status is $found, not $status: $(cat "$work/run/refused")"
    grep -q "$words" "$work/run/refused" || fail "$*: $(cat "$work/run/refused")"
}

started=()
main
