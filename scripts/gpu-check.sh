#!/usr/bin/env bash
# Checks a build on a GPU machine that has no toolchain, and prints one table.
#
#   scripts/gpu-check.sh build DIR   with env.sh of scripts/cuda-toolkit.sh sourced: writes the programs to DIR
#   DIR/gpu-check.sh                 on the GPU machine: runs the checks
#   DIR/gpu-check.sh --tp N          on a machine with N GPUs: checks N ranks with NCCL; one GPU is a group of one
#
# Correctness: it compares the kernels with their references and the models with their goldens, and serves the demo
# model.
#
# Speed: it measures each kernel beside the alternatives for the same work. It measures random weights in the shapes
# of Llama-3.1-8B and Qwen2.5-0.5B, with and without CUDA graphs, and over HTTP from files (16 GB in TMPDIR during the
# run). gpu-guided.py measures streams under a schema beside free ones, and gpu-peers.py measures PyTorch.
# llama.cpp's server is measured if scripts/gpu-llama-cpp.sh has put it into DIR.
# gpu-deterministic.py compares answers in different company.
#
# `GPU_CHECK=correct` omits the measurements, `GPU_CHECK=measure` the rest, and `GPU_CHECK=matmul,qwen` runs the named
# rows. Rows that would start after GPU_CHECK_SECONDS (540) are omitted, and the exit status is then 1. It is 0 if
# every row is ok.
#
# `DIR.tar.xz` contains DIR without DIR/golden, which is the repository's tests/golden. CANDLEPOWER_GOLDENS names that
# folder if it is elsewhere; each program that reads the goldens writes their weights there. Logs and
# measurements.jsonl are written to GPU_CHECK_OUT, or to DIR.
#
# The GPU machine needs the NVIDIA driver, python3 (with PyTorch and transformers for the comparisons with them),
# cuBLAS and cuRAND. The libraries are searched in this order: LD_LIBRARY_PATH, DIR/lib (made by
# `scripts/cuda-toolkit.sh DIR --libraries`), the packages of `python3` (PyTorch brings them), /usr/local/cuda*/lib64,
# and the system's own paths.
#
# Each comparison of kernels runs in a process of its own, because an error can leave the GPU's state unusable. Text
# that a comparison prints after `= ` is shown in its row.
set -euo pipefail

# A comparison that takes longer hangs.
TEST_SECONDS=90

# The libraries that the binary loads itself, each with its names, the preferred one first.
LIBRARIES=("libcublas.so.13 libcublas.so.12" "libcublasLt.so.13 libcublasLt.so.12" "libcurand.so.10")
# llama.cpp's server needs the runtime library too.
[ ! -x "$(dirname "${BASH_SOURCE[0]}")/llama-server" ] || LIBRARIES+=("libcudart.so.13")

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
golden=${CANDLEPOWER_GOLDENS:-$here/golden}
results=${GPU_CHECK_OUT:-$here}
GPU_CHECK=${GPU_CHECK:-}
group=correct
last_begin=${GPU_CHECK_SECONDS:-540}

stop() {
  echo "gpu-check: $1" >&2
  exit 1
}

build() {
  [ -n "${CUDA_HOME:-}" ] || stop "source env.sh of scripts/cuda-toolkit.sh first"
  mkdir -p "$1"
  local dir messages
  dir=$(cd "$1" && pwd)
  cd "$here/.."
  cargo build --release --features cuda --locked
  messages=$(cargo test --release --locked --package candlepower --package candlepower-gpu --package candlepower-models \
    --package candlepower-engine --features candlepower/cuda --lib --test cuda_kernels --test all --no-run \
    --message-format json)
  python3 -c '
import json, shutil, sys
built = {m["target"]["name"]: m["executable"] for m in map(json.loads, filter(None, sys.stdin)) if m.get("executable")}
shutil.copy(built["cuda_kernels"], sys.argv[1] + "/cuda_kernels")
shutil.copy(built["all"], sys.argv[1] + "/goldens")
shutil.copy(built["candlepower_engine"], sys.argv[1] + "/engine")' "$dir" <<<"$messages"
  strip "$dir/cuda_kernels" "$dir/goldens" "$dir/engine"
  cp "${CARGO_TARGET_DIR:-target}/release/candlepower" scripts/gpu-{check.sh,deterministic.py,guided.py,peers.py,weights.py} \
    scripts/goldens/{gpu_logits,seeded_weights}.py "$dir"
  rm -rf "$dir/golden" "$dir/shapes" "$dir/peers"
  # Peers of single kernels, and what they import besides PyTorch: 2 MB. They compile for the GPU at hand, with the Triton and the
  # NVRTC of PyTorch.
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target "$dir/peers" fla-core==0.6.0 flash-linear-attention==0.6.0 \
    humming-kernels==0.1.20 einops==0.8.2 packaging==26.4 || echo "gpu-check: the row peer-times measures PyTorch's kernels only"
  cp -r tests/golden "$dir/golden"
  shapes "$dir/shapes"
  # The four programs have most of their code in common, but far apart, so the compressor needs a large dictionary.
  tar -C "$dir" --exclude golden -c . | xz --lzma2=preset=6,dict=384MiB >"$dir.tar.xz"
  du -sh "$dir" "$dir.tar.xz"
  echo "gpu-check: take $dir to the GPU machine and run gpu-check.sh there"
}

# Folders of models without weights, in common shapes. The tokenizer is the demo's, since no text is checked.
shapes() {
  local name
  for name in llama-3.1-8b qwen2.5-0.5b; do
    mkdir -p "$1/$name"
    cp crates/server/demo/tokenizer.json crates/server/demo/tokenizer_config.json "$1/$name"
  done
  cat >"$1/llama-3.1-8b/config.json" <<'CONFIG'
{"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
 "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
 "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256,
 "model_type": "llama", "eos_token_id": 128001}
CONFIG
  cat >"$1/qwen2.5-0.5b/config.json" <<'CONFIG'
{"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
 "max_position_embeddings": 32768, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 151936,
 "model_type": "qwen2", "use_sliding_window": false, "eos_token_id": 151645}
CONFIG
}

# Folders that may have the libraries, one a line.
places() {
  tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
  echo "$here/lib"
  # shellcheck disable=SC2016
  python3 -c '
import glob, site
for root in [*site.getsitepackages(), site.getusersitepackages()]:
    print(*sorted(glob.glob(root + "/nvidia/*/lib"), key=lambda path: "/cu13/" not in path), sep="\n")' 2>/dev/null || true
  printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda-*/lib64
}

# Sets LD_LIBRARY_PATH to the folders of the libraries, and reports missing ones.
find_libraries() {
  local path='' names name place found
  for names in "${LIBRARIES[@]}"; do
    found=''
    for name in $names; do
      while IFS= read -r place; do
        [ -n "$place" ] && [ -e "$place/$name" ] && found=$place/$name && break 2
      done < <(places)
      found=$( (ldconfig -p || true) 2>/dev/null | awk -v name="$name" '$1 == name { found = $NF } END { print found }')
      [ -n "$found" ] && break
    done
    if [ -z "$found" ]; then
      row "${names%% *}" MISSING - "no folder has it: scripts/cuda-toolkit.sh DIR --libraries makes one"
      continue
    fi
    row "${found##*/}" ok - "${found%/*}"
    case ":$path:" in *":${found%/*}:"*) ;; *) path=$path:${found%/*} ;; esac
  done
  export LD_LIBRARY_PATH="${path#:}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

failed=0
# The known rows, each followed by a comma.
known=,
row() { # row NAME RESULT SECONDS DETAIL
  [ "$2" = ok ] || failed=1
  printf '%-44s %-8s %8s  %s\n' "$1" "$2" "$3" "$4"
}

# wanted NAME GROUP: whether a row was asked for.
wanted() {
  known=$known$1,
  case ${GPU_CHECK:-all} in
    all | "$2") ;;
    *) [[ ,${GPU_CHECK:-}, == *,$1,* ]] ;;
  esac
}

# check NAME COMMAND..: a row with the outcome of a command.
check() {
  local name=$1 start=$EPOCHREALTIME output result=ok detail seconds
  shift
  wanted "$name" "$group" || return 0
  if [ "$SECONDS" -gt "$last_begin" ]; then
    row "$name" "left out" - "it would start after $last_begin s: GPU_CHECK=$name runs it alone"
    return 0
  fi
  if declare -F "$1" >/dev/null; then
    output=$("$@" 2>&1) || result=FAILED
  else
    output=$(timeout -k 10 "$TEST_SECONDS" "$@" 2>&1) || result=FAILED
  fi
  seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  detail=$(sed -n 's/^\(test .* \.\.\. \)\{0,1\}= //p' <<<"$output" | tail -n 1)
  if grep -q 'test result: ok. 0 passed' <<<"$output"; then
    result=FAILED output="error: no such test"
  fi
  if [ "$result" = FAILED ]; then
    printf '== %s\n%s\n' "$name" "$output" >>"$results/gpu-check.log"
    # A command that was killed for its time limit may have printed no error.
    detail=$(grep -A 1 -m 1 -E 'panicked|ERROR|error' <<<"$output" | tr '\n' ' ') || detail="no word; it may take ${TEST_SECONDS} s"
  fi
  row "$name" "$result" "$seconds" "${detail:0:160}"
  # The printed output may be all that comes back from the machine.
  [ "$result" = ok ] || tail -n 15 <<<"$output" | cut -c 1-300 | sed 's/^/    | /'
}

URL=http://127.0.0.1:18765
server=''

# serve MODEL FLAGS..: starts a server in the background, and waits until it is ready.
serve() {
  start "$here/candlepower" serve "$@" --device cuda --dtype bfloat16
}

# start COMMAND..: starts a server in the background with the port of URL, and waits until it is ready.
start() {
  "$@" --port "${URL##*:}" >"$results/serve.log" 2>&1 &
  server=$!
  local until=$((SECONDS + TEST_SECONDS))
  while [ "$SECONDS" -lt "$until" ]; do
    "$here/candlepower" health --url "$URL" --timeout 2 >/dev/null 2>&1 && return
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  echo "error: the server did not become ready; $(tail -n 3 "$results/serve.log" | tr '\n' ' ')"
  return 1
}

# Stops the server, which has half a minute for running requests. Returns its exit status.
stop_server() {
  local status=0 killer
  kill "$server" 2>/dev/null || true
  # The output is redirected, because a reader of this script's output would wait for the background process.
  (sleep 45 && kill -KILL "$server") >/dev/null 2>&1 &
  killer=$!
  wait "$server" 2>/dev/null || status=$?
  kill "$killer" 2>/dev/null || true
  server=''
  return "$status"
}

# ask_demo FLAGS..: serves the demo model on the GPU and asks it a question.
ask_demo() {
  local answer='' ended=0
  if serve demo "$@"; then
    answer=$(python3 - "$URL/v1/chat/completions" 2>&1 <<'ASK'
import json, sys, urllib.request
question = {"role": "user", "content": "What is the capital of France?"}
body = json.dumps({"model": "demo", "messages": [question], "temperature": 0, "max_tokens": 32}).encode()
request = urllib.request.Request(sys.argv[1], body, {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=30).read().decode())
ASK
    ) || true
  fi
  stop_server || ended=$?
  if ! grep -q Paris <<<"$answer"; then
    echo "error: the demo answered \`$answer\`; $(tail -n 3 "$results/serve.log" | tr '\n' ' ')"
    return 1
  fi
  if [ "$ended" -ne 0 ]; then
    echo "error: after SIGTERM the server ended with status $ended; $(tail -n 3 "$results/serve.log" | tr '\n' ' ')"
    return 1
  fi
  echo "= $(sed -n 's/.*KV cache: //p' "$results/serve.log")"
}

# load JSON FLAGS..: measures the server at URL with prompts of 1,000 tokens and answers of 128.
load() {
  local json=$1
  shift
  timeout -k 10 "$TEST_SECONDS" "$here/candlepower" bench serve --url "$URL" --workload completions --prompts ids --input-tokens 1000 \
    --output-tokens 128 --json "$json" "$@"
}

# load_llama_cpp JSON MODEL: serves the same weights with llama.cpp's server, and measures it like load_server.
load_llama_cpp() {
  local json=$1 folder result=0
  [ -x "$here/llama-server" ] || { echo "error: llama-server is not beside this script: scripts/gpu-llama-cpp.sh builds it" && return 1; }
  folder=$(mktemp -d)
  cp "$here/shapes/$2"/* "$folder"
  # 64 slots of 1,152 tokens each.
  if python3 "$here/gpu-weights.py" "$folder" gguf && start "$here/llama-server" --model "$folder/model.gguf" --alias "$2" --host 127.0.0.1 \
    --n-gpu-layers 99 --flash-attn on --parallel 64 --ctx-size 73728 --batch-size 8192 --ubatch-size 2048; then
    load "$json" --concurrency 1,64 --requests 4,128 || result=1
  else
    result=1
  fi
  stop_server || result=1
  echo "= $(du -Lh "$folder/model.gguf" | cut -f 1) of weights, $(grep -m 1 -oE 'offloaded .* to GPU|CUDA0.*' "$results/serve.log" || echo "and no word of a GPU")"
  rm -r "$folder"
  return "$result"
}

# load_server JSON MODEL FLAGS..: serves weights from a file and measures the server over HTTP, by number of clients.
load_server() {
  local json=$1 model=$2 folder result=0
  shift 2
  folder=$(mktemp -d)
  cp "$here/shapes/$model"/* "$folder"
  if python3 "$here/gpu-weights.py" "$folder" && serve "$folder" --served-model-name "$model" "$@"; then
    load "$json" --concurrency 1,64,256 --requests 4,192,768 || result=1
  else
    result=1
  fi
  stop_server || result=1
  echo "= $(du -Lh "$folder/model.safetensors" | cut -f 1) of weights, $(sed -n 's/.*docs), //p' "$results/serve.log")"
  rm -r "$folder"
  return "$result"
}

# load_guided JSON FLAGS..: serves random weights and measures streams under a schema beside free ones.
load_guided() {
  local json=$1 output='' result=0
  shift
  if serve "$here/shapes/llama-3.1-8b" --load-format dummy "$@"; then
    output=$(timeout -k 10 "$TEST_SECONDS" python3 "$here/gpu-guided.py" "$URL" 64 15 2>&1) || result=1
  else
    result=1
  fi
  stop_server || result=1
  echo "$output"
  [ "$result" = 0 ] && tail -n 1 <<<"$output" >"$json"
  return "$result"
}

# guided NAME FLAGS..: a row with the speed of streams under a schema.
guided() {
  local name=$1 json
  json=$(mktemp)
  shift
  check "$name" load_guided "$json" "$@"
  keep "$name" "$json" || true
}

# same_answers FILE FLAGS..: serves random weights with --deterministic, and compares its answers with those in a file.
same_answers() {
  local file=$1 output='' result=0
  shift
  if serve "$here/shapes/llama-3.1-8b" --load-format dummy --deterministic "$@"; then
    output=$(timeout -k 10 "$TEST_SECONDS" python3 "$here/gpu-deterministic.py" "$URL" "$file" 2>&1) || result=1
  else
    result=1
  fi
  stop_server || result=1
  echo "$output"
  return "$result"
}

# keep NAME JSON: appends a line to measurements.jsonl, if there is a measurement.
keep() {
  [ -s "$2" ] || return 1
  printf '{"row": "%s", "measured": %s}\n' "$1" "$(tr -d '\n' <"$2")" >>"$results/measurements.jsonl"
}

# http NAME LOAD MODEL FLAGS..: a row with a server's start-up time and its speed for its clients. LOAD serves and measures.
http() {
  local name=$1 run=$2 json
  json=$(mktemp)
  shift 2
  check "$name" "$run" "$json" "$@"
  keep "$name" "$json" || return 0
  python3 - "$json" <<'SHOW' || true
import json, sys
for level in json.load(open(sys.argv[1]))["levels"]:
    first, token = level["time_to_first_token_s"] or {}, level["time_per_output_token_s"] or {}
    print("    clients %4d: %8.0f tok/s out, %8.0f in; first token p50 %6.0f ms, p99 %6.0f; each further p50 %6.2f ms, p99 %6.2f" % (
        level["concurrency"], level["output_tokens_per_s"], level["input_tokens_per_s"],
        *(1e3 * times.get(name, 0) for times in (first, token) for name in ("p50", "p99"))))
SHOW
}

# bench NAME MODEL FLAGS..: rows with the speeds of `candlepower bench run`.
bench() {
  local name=$1 model=$2 json
  json=$(mktemp)
  shift 2
  check "$name" "$here/candlepower" bench run "$here/shapes/$model" --load-format dummy --device cuda --dtype bfloat16 \
    --json "$json" "$@"
  keep "$name" "$json" || return 0
  python3 - "$json" <<'SHOW' || true
import json, sys
for shape in json.load(open(sys.argv[1]))["shapes"]:
    decode, prefill = shape["decode"], shape["prefill"]
    print("    batch %4d, %5d in: prefill %9.0f tok/s, decode %8.0f tok/s, step %7.3f ms, weights %5.0f GB/s" % (
        shape["batch"], shape["input_tokens"], prefill["tokens_per_s"] or 0, decode["tokens_per_s"] or 0,
        1e3 * decode["step_s"]["p50"], (decode["weights_bytes_per_s"] or 0) / 1e9))
SHOW
}

# Writes the times of the kernels to a file.
time_kernels() {
  local file=$results/kernel-times.txt
  timeout -k 10 "$TEST_SECONDS" "$here/cuda_kernels" --times >"$file" 2>&1 || {
    tail -n 3 "$file"
    return 1
  }
  echo "= $(($(wc -l <"$file") - 1)) times of kernels, in ${file##*/}"
}

# Writes the times of others' kernels to a file.
time_peers() {
  local file=$results/peer-times.txt
  # build puts small wheels into DIR/peers.
  PYTHONPATH=$here/peers timeout -k 10 "$TEST_SECONDS" python3 -u "$here/gpu-peers.py" --kernels >"$file" 2>&1 || {
    tail -n 3 "$file"
    return 1
  }
  tail -n 1 "$file"
}

# Writes the times of the kernel for prompts on Hopper to a file.
time_hopper() {
  local file=$results/hopper-times.txt
  timeout -k 10 60 "$here/cuda_kernels" --times prefill >"$file" 2>&1 || {
    tail -n 3 "$file"
    return 1
  }
  echo "= $(($(wc -l <"$file") - 1)) times of kernels, in ${file##*/}"
}

measure() {
  group=measure
  TEST_SECONDS=240
  rm -f "$results/kernel-times.txt" "$results/hopper-times.txt"
  check kernel-times time_kernels
  [ ! -e "$results/kernel-times.txt" ] || sed 's/^/    /' "$results/kernel-times.txt"
  TEST_SECONDS=150
  local llama=(llama-3.1-8b --max-model-len 8448 --max-num-batched-tokens 8192)
  bench llama-one-stream "${llama[@]}" --batch 1 --input-tokens 128,8192 --output-tokens 128
  bench llama-many-streams "${llama[@]}" --batch 8,64,256 --input-tokens 1000 --output-tokens 64
  # Prompts by FlashInfer's kernel for Hopper, beside the rows without it. hopper-times has both kernels.
  # It has never run, so rows that hang end early.
  export CANDLEPOWER_PREFILL_ATTENTION=hopper
  TEST_SECONDS=60
  check hopper-times time_hopper
  [ ! -e "$results/hopper-times.txt" ] || sed 's/^/    /' "$results/hopper-times.txt"
  bench llama-prefill-hopper "${llama[@]}" --batch 1 --input-tokens 8192 --output-tokens 16
  bench llama-prompts-hopper "${llama[@]}" --batch 8 --input-tokens 1000 --output-tokens 16
  TEST_SECONDS=150
  unset CANDLEPOWER_PREFILL_ATTENTION
  # Decodes after long contexts. 8 x 128,000 tokens would not fit beside the weights.
  local long=(llama-3.1-8b --max-model-len 131072 --max-num-batched-tokens 8192 --max-num-seqs 8)
  bench llama-context-32k "${long[@]}" --batch 1,8 --input-tokens 32000 --output-tokens 32
  bench llama-context-128k "${long[@]}" --batch 1 --input-tokens 128000 --output-tokens 32
  # The same without cuBLAS for 3 to 128 rows.
  CANDLEPOWER_PRODUCT_ROWS=3-128 bench llama-product-rows "${llama[@]}" --batch 8,64 --input-tokens 1000 --output-tokens 64
  # Weights and activations in FP8. The log says whether cuBLASLt passed its trial.
  bench llama-fp8 "${llama[@]}" --batch 1,64,256 --input-tokens 1000 --output-tokens 64 --quantize-on-load fp8
  bench llama-fp8-long "${llama[@]}" --batch 1 --input-tokens 8192 --output-tokens 64 --quantize-on-load fp8
  bench llama-deterministic "${llama[@]}" --batch 1,64 --input-tokens 128,1000 --output-tokens 64 --deterministic
  bench llama-deterministic-long "${llama[@]}" --batch 1 --input-tokens 8192 --output-tokens 64 --deterministic
  local answers=$results/deterministic.json
  rm -f "$answers"
  check deterministic same_answers "$answers" --max-model-len 2304 --max-num-batched-tokens 8192
  check deterministic-chunks same_answers "$answers" --max-model-len 2304 --max-num-batched-tokens 512
  # The cache holds about a third of what 64 prompts need.
  check deterministic-preempted same_answers "$answers" --max-model-len 2304 --kv-cache-memory 3Gi
  # Decodes over an FP8 cache by the own kernel, and by FlashInfer's. The log says whether the own one passed its trial.
  local fp8_cache=("${llama[@]}" --batch 64,256 --input-tokens 1000 --output-tokens 32 --kv-cache-dtype fp8)
  bench llama-fp8-cache "${fp8_cache[@]}"
  CANDLEPOWER_FP8_DECODE=flashinfer bench llama-fp8-cache-flashinfer "${fp8_cache[@]}"
  bench llama-eager "${llama[@]}" --batch 1,64 --input-tokens 128 --output-tokens 64 --enforce-eager
  local qwen=(qwen2.5-0.5b --max-model-len 4096 --max-num-batched-tokens 8192)
  http llama-http load_server "${llama[@]}" --max-num-seqs 256
  # Beside llama-http, if the program is there or the row is named.
  if [ -x "$here/llama-server" ] || [[ ,$GPU_CHECK, == *,llama-cpp,* ]]; then
    http llama-cpp load_llama_cpp llama-3.1-8b
  fi
  guided guided --max-model-len 2048
  guided guided-prism --max-model-len 2048 --framework prism
  bench qwen "${qwen[@]}" --batch 1,64,256 --input-tokens 128 --output-tokens 128
  # Graphs of decodes that do not divide short contexts.
  CANDLEPOWER_WHOLE_CONTEXTS=512 bench qwen-whole-contexts "${qwen[@]}" --batch 1,64,256 --input-tokens 128 --output-tokens 128
  # Fused kernels of decodes. llama-one-stream and qwen have the default, `gate`.
  local fusions
  for fusions in off gate,prefetch gate,wave gate,norm,prefetch,wave; do
    CANDLEPOWER_DECODE_FUSIONS=$fusions bench "llama-fusions-${fusions//,/-}" "${llama[@]}" --batch 1 --input-tokens 128 --output-tokens 128
  done
  for fusions in off gate,norm gate,norm,prefetch; do
    CANDLEPOWER_DECODE_FUSIONS=$fusions bench "qwen-fusions-${fusions//,/-}" "${qwen[@]}" --batch 1 --input-tokens 128 --output-tokens 128
  done
  bench qwen-eager "${qwen[@]}" --batch 1,64 --input-tokens 128 --output-tokens 64 --enforce-eager
  # Compilation takes most of the time.
  TEST_SECONDS=240
  rm -f "$results/peer-times.txt"
  check peer-times time_peers
  [ ! -e "$results/peer-times.txt" ] || sed 's/^/    /' "$results/peer-times.txt"
  TEST_SECONDS=420
  check gpu-peers python3 -u "$here/gpu-peers.py" "$here/shapes/qwen2.5-0.5b" "$here/shapes/llama-3.1-8b"
}

# Prints the head of the table, the libraries, the driver and the GPUs.
begin() {
  [ -x "$here/candlepower" ] && [ -x "$here/cuda_kernels" ] ||
    stop "candlepower and cuda_kernels are not beside this script: \`scripts/gpu-check.sh build DIR\` puts them there"
  mkdir -p "$results"
  : >"$results/gpu-check.log"
  : >"$results/measurements.jsonl"
  row check result seconds detail
  failed=0
  find_libraries
  ("$here/candlepower" doctor || true) | sed -n 's/^ *\(driver\|gpu\)/\1/p'
}

end() {
  local name
  for name in ${GPU_CHECK//,/ }; do
    case ,all,correct,measure$known in
      *",$name,"*) ;;
      *) row "$name" MISSING - "there is no such row: choose all, correct, measure, or a row of a run without GPU_CHECK" ;;
    esac
  done
  [ "$failed" = 0 ] || echo "gpu-check: some rows failed; their output is in $results/gpu-check.log"
  exit "$failed"
}

compare() { # compare NAME: a row with a comparison of the kernels
  check "$1" "$here/cuda_kernels" --exact "$1" --nocapture --test-threads 1
}

# goldens GPUS TEST [ROW]: a row with a test of the models.
goldens() {
  check "${3:-goldens}" env CANDLEPOWER_TEST_GPUS="$1" CANDLEPOWER_GOLDENS="$golden" "$here/goldens" --ignored --exact "device::$2" \
    --nocapture
}

run() {
  begin
  compare_all
  measure
  end
}

compare_all() {
  local tests name
  group=correct
  tests=$("$here/cuda_kernels" --list --format terse | sed -n 's/: test$//p') || true
  [ -n "$tests" ] || row cuda_kernels MISSING - "the binary has no comparisons"
  for name in $tests; do
    # One GPU needs no NCCL.
    [ "$name" = nccl ] || compare "$name"
  done
  goldens 1 a_gpu_computes_every_architecture
  goldens 1 chunks::a_gpu_computes_long_prompts_of_hybrids long-prompts
  goldens 1 fp8_cache::a_gpu_decodes_over_a_cache_in_fp8 fp8-cache
  goldens 1 a_gpu_gives_a_token_the_same_bits_in_every_step same-bits
  goldens 1 fused_kernels_change_no_bit fused-bits
  TEST_SECONDS=150
  check goldens-transformers beside_transformers
  TEST_SECONDS=90
  check decode-memory env CANDLEPOWER_GOLDENS="$golden" "$here/engine" --ignored --exact \
    device_runner::tests::a_gpu_takes_no_memory_in_decodes --nocapture
  check serve ask_demo
}

# Compares the models with transformers on this GPU.
beside_transformers() {
  local folder result=0
  folder=$(mktemp -d)
  timeout -k 10 "$TEST_SECONDS" python3 "$here/gpu_logits.py" "$golden" "$folder" >"$results/goldens-transformers.txt" 2>&1 &&
    CANDLEPOWER_TRANSFORMERS=$folder CANDLEPOWER_GOLDENS=$golden timeout -k 10 "$TEST_SECONDS" "$here/goldens" --ignored --exact \
      device::a_gpu_rounds_as_transformers_does --nocapture >>"$results/goldens-transformers.txt" 2>&1 || result=1
  rm -r "$folder"
  grep -E '^(test .* )?= |transformers computed' "$results/goldens-transformers.txt" || true
  [ "$result" = 0 ] || tail -n 3 "$results/goldens-transformers.txt"
  return "$result"
}

# run_ranks N: the checks of N GPUs together.
run_ranks() {
  group=correct
  LIBRARIES+=("libnccl.so.2")
  begin
  compare embedding
  compare nccl
  goldens "$1" gpus_compute_what_one_does
  check graphs-end env CANDLEPOWER_GOLDENS="$golden" "$here/engine" --ignored --exact \
    device_runner::tests::graphs_end_before_the_group_of_their_sums
  check serve ask_demo --tensor-parallel-size "$1"
  check serve-eager ask_demo --tensor-parallel-size "$1" --enforce-eager
  end
}

case ${1:-run} in
  build) build "${2:?usage: scripts/gpu-check.sh build DIR}" ;;
  run) run ;;
  --tp) run_ranks "${2:?usage: gpu-check.sh --tp N}" ;;
  *) stop "usage: gpu-check.sh [build DIR | --tp N]" ;;
esac
