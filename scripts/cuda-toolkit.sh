#!/usr/bin/env bash
# Assembles a CUDA toolkit from pinned PyPI wheels, on a machine that has none: without root, driver or GPU.
#
#   scripts/cuda-toolkit.sh DIR               for the fast build: GGUF's large matmul kernels are left empty
#   scripts/cuda-toolkit.sh DIR --full        for the full build, which compiles them: many minutes more
#   scripts/cuda-toolkit.sh DIR --libraries   only cuBLAS, cuRAND and NCCL, for a GPU machine that lacks them: 950 MB
#
# Then, in any POSIX shell:
#
#   . DIR/env.sh
#   cargo build --release --features cuda
#
# CUDA_COMPUTE_CAP chooses the GPUs: 80 (A100), 86 (A10, RTX 30), 89 (L4, L40S, RTX 40), 90 (H100, H200: the default),
# 100 (B200), 120 (RTX 50).
#
# The program needs no CUDA library to start. DIR/cuda/lib has stand-ins, which load the real libraries at the first
# call. Builds without the feature are not affected by env.sh.
#
# Needs x86-64 Linux, Python 3 with venv, cargo, and g++ up to 15. A second run without changes does nothing.
set -euo pipefail

CUDA_VERSION=13000
NEWEST_GXX=15

stop() {
  echo "cuda-toolkit: $1" >&2
  exit 1
}

usage="usage: scripts/cuda-toolkit.sh DIR [--full | --libraries]"
[ $# -ge 1 ] && [ $# -le 2 ] || stop "$usage"
kind=${2:---fast}
case $1$kind in
  -*) stop "$usage" ;;
  *--fast | *--full | *--libraries) ;;
  *) stop "$usage" ;;
esac
mkdir -p "$1"
dir=$(cd "$1" && pwd)
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# A note in each folder says what it was made from, so that a second run can tell whether to make it again.
made_from() {
  { echo "$dir" && cat "${BASH_SOURCE[0]}" "$scripts"/cuda/*.* "$scripts/../Cargo.lock"; } | sha256sum
}

is_made() {
  [ "$(cat "$dir/$1.made" 2>/dev/null)" = "$(made_from)" ]
}

check_machine() {
  [ "$(uname -sm)" = "Linux x86_64" ] || stop "the wheels and the stand-ins are for Linux on x86-64 only"
  python3 -c 'import venv, ensurepip' 2>/dev/null || stop "Python 3 with venv is needed (Debian: apt install python3-venv)"
}

check_compiler() {
  command -v cargo >/dev/null || stop "cargo is needed: https://rustup.rs"
  local gxx
  gxx=$(g++ -dumpversion 2>/dev/null) || stop "g++ is needed: nvcc compiles host code with it (Debian: apt install g++)"
  [ "${gxx%%.*}" -le "$NEWEST_GXX" ] || [ -n "${NVCC_CCBIN:-}" ] ||
    stop "nvcc takes g++ up to $NEWEST_GXX, this is $gxx: install an older one and name it in NVCC_CCBIN"
}

# download FOLDER LIST: the wheels of a list, checked against its hashes.
download() {
  [ -x "$dir/pip/bin/pip" ] || python3 -m venv "$dir/pip"
  rm -rf "$1"
  "$dir/pip/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --require-hashes --dest "$1" --requirement "$2"
}

make_libraries() {
  download "$dir/wheels" "$scripts/cuda/libraries.txt"
  rm -rf "$dir/lib"
  local package
  for package in cu13 nccl; do
    python3 "$scripts/cuda/unpack.py" "$dir/wheels" "nvidia/$package/lib/*.so.*" "$dir/lib"
  done
  rm -rf "$dir/wheels"
}

make_toolkit() {
  download "$dir/wheels" "$scripts/cuda/toolkit.txt"
  rm -rf "$dir/cuda" "$dir/flashinfer" "$dir/cutlass"
  local unpack=(python3 "$scripts/cuda/unpack.py" "$dir/wheels")
  for part in bin nvvm include; do
    "${unpack[@]}" "nvidia/cu13/$part/*" "$dir/cuda/$part"
  done
  chmod +x "$dir"/cuda/bin/* "$dir"/cuda/nvvm/bin/*
  "${unpack[@]}" 'flashinfer/data/include/*' "$dir/flashinfer/include"
  # CUTLASS's headers, which FlashInfer's kernels for Hopper include: 27 MB.
  "${unpack[@]}" 'flashinfer/data/cutlass/include/*' "$dir/cutlass/include"
  # No shared library is on the linker's path. So the program cannot come to depend on one.
  "${unpack[@]}" 'nvidia/cu13/lib/*.a' "$dir/cuda/lib"
  mv "$dir/cuda/lib/libcudart_static.a" "$dir/cuda/lib/libcudart.a"
  ln -s lib "$dir/cuda/lib64"
  rm -rf "$dir/wheels"
}

# The folder of a crate, in the version that the lockfile names.
crate() {
  python3 -c '
import json, os, sys
packages = json.load(open(sys.argv[1]))["packages"]
print(*(os.path.dirname(p["manifest_path"]) for p in packages if p["name"] == sys.argv[2]))' "$dir/metadata.json" "$1"
}

make_stand_ins() {
  (cd "$scripts/.." && cargo metadata --quiet --format-version 1 --locked --all-features \
    --filter-platform x86_64-unknown-linux-gnu) >"$dir/metadata.json"
  python3 "$scripts/cuda/stand_ins.py" "$(crate cudarc)" "$dir/cuda/lib"
  python3 "$scripts/cuda/fast_nvcc.py" "$(crate candle-kernels)" "$dir/cuda/bin/nvcc" "$dir/fast"
}

write_env() {
  local nvcc=$dir/fast/nvcc
  [ "$kind" = --full ] && nvcc=$dir/cuda/bin/nvcc
  cat >"$dir/env.sh" <<ENV
# Written by scripts/cuda-toolkit.sh: source it, then \`cargo build --release --features cuda\`.
export CUDA_HOME="$dir/cuda"
export NVCC="$nvcc"
export CUDARC_CUDA_VERSION=$CUDA_VERSION
export CUDA_COMPUTE_CAP="\${CUDA_COMPUTE_CAP:-90}"
export CUDAFORGE_THREADS="\${CUDAFORGE_THREADS:-\$(nproc)}"
export FLASHINFER_INCLUDE="$dir/flashinfer/include"
export CUTLASS_INCLUDE="$dir/cutlass/include"
ENV
}

check_machine
if [ "$kind" = --libraries ]; then
  if ! is_made libraries; then
    make_libraries
    made_from >"$dir/libraries.made"
  fi
  echo "cuda-toolkit: run candlepower with LD_LIBRARY_PATH=$dir/lib"
  exit
fi
check_compiler
if ! is_made toolkit; then
  make_toolkit
  make_stand_ins
  made_from >"$dir/toolkit.made"
fi
write_env
echo "cuda-toolkit: now \`. $dir/env.sh\` and \`cargo build --release --features cuda\`"
