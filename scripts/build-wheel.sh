#!/usr/bin/env bash
# Builds the Python wheel, which contains the program `candlepower`.
#
#   scripts/build-wheel.sh OUTDIR [PROGRAM]
#
# Without PROGRAM, a release build is made: for the CPU, or for GPUs if env.sh of scripts/cuda-toolkit.sh was sourced.
# With PROGRAM, that file is packed, and the rest comes from the build of `cargo xtask test`, as tests need it. Needs
# Rust, a C++ compiler, binutils and Python 3.11 or later with its `venv`.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
program=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."

readonly PACKAGE=crates/python
readonly CARRIED=$PACKAGE/python/candlepower/bin/candlepower
readonly REQUIREMENTS=$PACKAGE/requirements-build.txt
target=${CARGO_TARGET_DIR:-target}
venv=$target/tools/wheel
profile=dev

if ! cmp -s $REQUIREMENTS "$venv/installed.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet -r $REQUIREMENTS
    cp $REQUIREMENTS "$venv/installed.txt"
fi

if [ -z "$program" ]; then
    profile=release
    cargo build --release --locked --package candlepower --features "full${FLASHINFER_INCLUDE:+,cuda}"
    program=$target/release/candlepower
else
    export CARGO=$PWD/scripts/cargo-workspace.sh
fi
mkdir -p "$(dirname $CARRIED)"
trap 'rm -rf "$(dirname $CARRIED)"' EXIT
cp "$program" $CARRIED
chmod 755 $CARRIED
cp LICENSE THIRD-PARTY.txt "$(dirname $CARRIED)"

# The wheel's platform tag requires at least the C library that the program needs.
glibc=$(objdump --dynamic-syms $CARRIED | grep -o 'GLIBC_2\.[0-9]*' | sort --version-sort | tail -n 1)
"$venv/bin/maturin" build --profile $profile --locked --manifest-path $PACKAGE/Cargo.toml \
    --compatibility "manylinux_2_${glibc#GLIBC_2.}" --out "$out"
