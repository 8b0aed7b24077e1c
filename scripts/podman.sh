# Common parts of the scripts that run containers: Podman with a storage of its own, and base images of Debian.
#
# Source this file with $work set to a folder. Needs Debian 12 and root.

readonly SUITE=bookworm
readonly IMAGE=localhost/candlepower:check
readonly UID_IN_IMAGE=10001
readonly START_SECONDS=60

install_tools() {
    if command -v podman buildah runc debootstrap curl > "$work/tools" 2>&1 && [ "$(wc -l < "$work/tools")" = 5 ]; then
        return
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        podman buildah runc conmon netavark aardvark-dns containernetworking-plugins slirp4netns fuse-overlayfs \
        iptables uidmap catatonit debootstrap curl > "$work/apt.log"
}

# A storage of its own, and settings that work without systemd and without permission to raise limits.
configure_podman() {
    cat > "$work/containers.conf" << END
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
    export CONTAINERS_CONF=$work/containers.conf
}

pod() {
    command podman --root "$work/storage" --runroot "$work/run" "$@"
}

# wait_for WHAT COMMAND..
wait_for() {
    local what=$1 end=$((SECONDS + START_SECONDS))
    shift
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "waited too long for $what"
        sleep 0.1
    done
}

fail() {
    echo "error: $*" >&2
    exit 1
}
