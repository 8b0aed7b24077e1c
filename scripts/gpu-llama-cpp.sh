#!/usr/bin/env bash
# Builds llama.cpp's server for GPUs, on a machine without GPU, driver or CUDA toolkit, as a peer in scripts/gpu-check.sh.
#
#   scripts/gpu-llama-cpp.sh WORK DIR   builds in WORK (1.5 GB), and writes DIR/llama-server and DIR/llama-server.tar.xz
#
# DIR is that of `gpu-check.sh build DIR`. Its row `llama-cpp` needs the program. The sources are those of the Python
# package llama-cpp-python. CUDA_COMPUTE_CAP chooses the GPUs, as for scripts/cuda-toolkit.sh (90 by default). Two cores take half an hour.
# On the GPU machine the program needs libcudart.so.13 and libcublas.so.13, which gpu-check.sh finds.
set -euo pipefail

LLAMA=0.3.36
PACKAGES=(cmake==4.4.5 ninja==1.13.2 nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85
  nvidia-cuda-runtime==13.0.96 nvidia-cublas==13.0.2.14)

[ $# -eq 2 ] || { echo "usage: scripts/gpu-llama-cpp.sh WORK DIR" >&2; exit 1; }
mkdir -p "$1" "$2"
work=$(cd "$1" && pwd)
out=$(cd "$2" && pwd)

if [ ! -e "$work/tools.complete" ]; then
  python3 -m venv "$work/tools"
  "$work/tools/bin/pip" install --quiet --disable-pip-version-check --no-deps "${PACKAGES[@]}"
  touch "$work/tools.complete"
fi
if [ ! -e "$work/sources.complete" ]; then
  # Only this package comes as sources. With `:all:` pip would also build its build tools from sources.
  "$work/tools/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$work" \
    "llama-cpp-python==$LLAMA"
  tar -xzf "$work/llama_cpp_python-$LLAMA.tar.gz" -C "$work" --strip-components 1
  touch "$work/sources.complete"
fi

toolkit=$(echo "$work"/tools/lib/python3*/site-packages/nvidia/cu13)
[ -e "$toolkit/lib64" ] || ln -s lib "$toolkit/lib64"
# The wheels have no names without a version, which the linker looks for.
for library in "$toolkit"/lib/lib{cudart,cublas,cublasLt}.so.13; do
  ln -sf "${library##*/}" "${library%.13}"
done
export PATH="$work/tools/bin:$toolkit/bin:$PATH" CUDA_PATH=$toolkit CUDACXX=$toolkit/bin/nvcc
cmake -G Ninja -S "$work/vendor/llama.cpp" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_CUDA=ON \
  -DGGML_CUDA_NO_VMM=ON -DGGML_CUDA_NCCL=OFF -DCMAKE_CUDA_ARCHITECTURES="${CUDA_COMPUTE_CAP:-90}-real" \
  -DCUDAToolkit_ROOT="$toolkit" -DCMAKE_SKIP_RPATH=ON >"$work/build.log"
cmake --build "$work/build" --target llama-server >>"$work/build.log"
cp "$work/build/bin/llama-server" "$out/llama-server"
strip "$out/llama-server"
tar -C "$out" -c llama-server | xz --lzma2=preset=6,dict=128MiB >"$out/llama-server.tar.xz"
du -sh "$out/llama-server" "$out/llama-server.tar.xz"
