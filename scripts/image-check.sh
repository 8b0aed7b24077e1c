#!/usr/bin/env bash
# Builds the container image from the Dockerfile, runs it with Podman and checks it.
#
#   scripts/image-check.sh [FOLDER]                       the image for the CPU
#   CUDA_COMPUTE_CAP=90 scripts/image-check.sh [FOLDER]   one for GPUs, which computes on the CPU here
#
# Needs Debian 12 and root. It installs Podman and debootstrap if they are missing, and makes both base images with
# debootstrap, so that no registry of images is needed. The Rust toolchain, the crates and CUDA's wheels come from
# this machine. It needs a release build and about 6 GB, for GPUs 15 GB. Everything is removed at the end, unless
# FOLDER is given, which keeps the images for the next run.
set -euo pipefail
cd "$(dirname "$0")/.."

# Compute capability of the image's GPUs; empty for the CPU.
readonly CAPABILITY=${CUDA_COMPUTE_CAP:-}
# Limit of the image's size without its base. cuBLAS, cuRAND and NCCL take 950 MB.
readonly MAX_BYTES=$((CAPABILITY ? 1200000000 : 60000000))

keep=${1:+yes}
work=${1:-$(mktemp -d)}
mkdir -p "$work"
work=$(realpath "$work")
# shellcheck source=scripts/podman.sh
. scripts/podman.sh

main() {
    install_tools
    configure_podman
    trap clean_up EXIT
    make_bases
    build
    check_size
    if [ -n "$CAPABILITY" ]; then
        check_libraries
    fi
    check_service
    check_drain
    check_other_ports
    echo "All checks of the image passed."
}

clean_up() {
    local status=$?
    if [ $status != 0 ]; then
        pod logs check 2> /dev/null | tail -n 30 || true
    fi
    pod rm --force --all --volumes > /dev/null 2>&1 || true
    if [ -z "$keep" ]; then
        pod rmi --force --all > /dev/null 2>&1 || true
        rm -rf --one-file-system "$work"
    fi
}

make_bases() {
    make_base base ""
    make_base builder "gcc,g++,libc6-dev,python3-venv" \
        --change "ENV CARGO_HOME=/usr/local/cargo" --change "ENV CARGO_NET_OFFLINE=true" \
        --change "ENV PIP_NO_INDEX=1" --change "ENV PIP_FIND_LINKS=/wheels" \
        --change "ENV PATH=/usr/local/rust/bin:/usr/local/bin:/usr/bin:/bin"
}

# make_base NAME PACKAGES [IMPORT-OPTION..]
make_base() {
    local name=$1 packages=$2
    shift 2
    if pod image exists "localhost/candlepower-$name"; then
        return
    fi
    echo "Making the base image $name"
    debootstrap --variant=minbase ${packages:+--include="$packages"} $SUITE "$work/$name" > "$work/debootstrap.log"
    tar -C "$work/$name" -c --exclude=./var/cache/apt --exclude=./var/lib/apt/lists . |
        pod import --quiet "$@" - "localhost/candlepower-$name" > /dev/null
    rm -rf --one-file-system "${work:?}/$name"
}

build() {
    local crates=${CARGO_HOME:-$HOME/.cargo}/registry
    cargo fetch --locked --quiet
    mkdir -p "$work/wheels"
    if [ -n "$CAPABILITY" ]; then
        echo "Downloading CUDA's wheels"
        for list in toolkit libraries; do
            python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes --dest "$work/wheels" \
                --requirement scripts/cuda/$list.txt
        done
    fi
    echo "Building the image"
    nice -n 10 podman --root "$work/storage" --runroot "$work/run" build --quiet --format docker --network none \
        --build-arg BASE=localhost/candlepower-base --build-arg BUILDER=localhost/candlepower-builder \
        --build-arg CUDA_COMPUTE_CAP="$CAPABILITY" --volume "$work/wheels:/wheels:ro" \
        --volume "$(rustc --print sysroot):/usr/local/rust:ro" --volume "$crates:/usr/local/cargo/registry" \
        --tag $IMAGE . > /dev/null
}

check_size() {
    local whole base own version
    whole=$(pod image inspect --format '{{.Size}}' $IMAGE)
    base=$(pod image inspect --format '{{.Size}}' localhost/candlepower-base)
    own=$((whole - base))
    echo "Size: $whole bytes, $own without its base"
    [ "$own" -le $MAX_BYTES ] || fail "that is more than $MAX_BYTES"
    version=$(pod run --rm --no-healthcheck $IMAGE --version)
    [ "$version" = "candlepower $(label version)" ] || fail "$version, but the label says $(label version)"
}

# The libraries that the program loads on a GPU are there, with their dependencies.
check_libraries() {
    local library found
    for library in libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libnccl.so.2; do
        found=$(pod run --rm --no-healthcheck --entrypoint ldd $IMAGE /usr/local/lib/cuda/$library)
        ! grep -q "not found" <<< "$found" || fail "$library: $found"
    done
    found=$(pod run --rm --no-healthcheck $IMAGE serve demo --device cuda 2>&1) && fail "a GPU was found: $found"
    grep -q "no NVIDIA driver" <<< "$found" || fail "without a driver: $found"
    echo "CUDA's libraries are complete; without a driver: $(grep -o 'ERROR.*' <<< "$found" | head -n 1)"
}

label() {
    pod image inspect --format "{{index .Labels \"org.opencontainers.image.$1\"}}" $IMAGE
}

# The demo model as a user would run it, but with write access to the volume only.
check_service() {
    local address pid answer
    start --publish 127.0.0.1::8000 $IMAGE
    address=$(pod port check 8000)
    pid=$(pod inspect --format '{{.State.Pid}}' check)
    [ "$(stat -c %u "/proc/$pid")" = $UID_IN_IMAGE ] || fail "the server does not run as user $UID_IN_IMAGE"
    answer=$(ask "$address" '"prompt": "2 + 2 =", "max_tokens": 4, "temperature": 0')
    echo "$answer" | grep -q '"completion_tokens":4' || fail "not a completion: $answer"
    [ "$(pod volume inspect --format '{{.Mountpoint}}' candlepower-check | xargs stat -c %u)" = $UID_IN_IMAGE ] ||
        fail "the volume is not the server's own"
    echo "Healthy and answering as user $UID_IN_IMAGE, with a root file system that cannot be written"
}

# A request that is running when the engine stops the container gets its complete answer.
check_drain() {
    local address stream status started
    address=$(pod port check 8000)
    stream=$work/stream
    ask "$address" '"prompt": "Once", "max_tokens": 1500, "n": 16, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true}' > "$stream" &
    wait_for "the first token" grep -q '^data:' "$stream"
    started=$(date +%s)
    pod kill --signal TERM check > /dev/null
    ! grep -q '\[DONE\]' "$stream" || fail "the request was over before the signal: nothing was checked"
    wait $! || fail "the request was cut off"
    status=$(pod wait check)
    [ "$status" = 0 ] || fail "the server ended with status $status"
    grep -q '\[DONE\]' "$stream" || fail "the answer is not complete"
    grep -q '"completion_tokens":24000' "$stream" || fail "the answer is shorter than requested"
    echo "SIGTERM: the running request got its complete answer; status 0 after $(($(date +%s) - started)) s"
}

# The health check uses the server's settings, from flags or from the environment.
check_other_ports() {
    start $IMAGE serve demo --framework prism
    start $IMAGE serve demo --framework prism --port 31000
    start --env BLAZE_PORT=9000 $IMAGE
    start --init --user 12345:0 $IMAGE serve demo --port 9001
    echo "The health check finds prism, changed ports, and the server behind an init"
}

# Runs a container and waits until its own health check passes.
start() {
    pod rm --force check > /dev/null 2>&1 || true
    pod run --detach --name check --read-only --read-only-tmpfs=false --volume candlepower-check:/data "$@" \
        > "$work/start.log" 2>&1 || fail "$(cat "$work/start.log")"
    # Podman runs health checks by timers of systemd, which this machine may not have. So each is started here.
    wait_for "a healthy container" pod healthcheck run check
}

# ask ADDRESS FIELDS
ask() {
    curl -sSN --max-time 120 "http://$1/v1/completions" -H 'content-type: application/json' \
        -d "{\"model\": \"demo\", $2}"
}

main
