#!/usr/bin/env bash
# Builds the emulated GPU's libraries: build.sh FOLDER, with env.sh of scripts/cuda-toolkit.sh sourced.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
"${CXX:-g++}" -std=c++20 -O3 -march=native -fPIC -fno-semantic-interposition -shared -Wall -Wextra -isystem "$CUDA_HOME/include" \
  "$here"/{block,races,libcuda,libcublas,libcublaslt,libnccl,tensor_cores}.cpp -o "$1/libcuda.so.1"
for name in libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libnccl.so.2; do
  ln -sf libcuda.so.1 "$1/$name"
done
