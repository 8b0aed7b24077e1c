#!/usr/bin/env bash
# Checks a build on a GPU machine that has no toolchain, in one table.
#
#   scripts/gpu-check.sh build DIR   with env.sh of scripts/cuda-toolkit.sh sourced: puts what is to be run into DIR
#   DIR/gpu-check.sh                 on the GPU machine: runs it
#
# The GPU machine needs the NVIDIA driver, cuBLAS and cuRAND. These are looked for, in this order, in LD_LIBRARY_PATH, in DIR/lib
# (`scripts/cuda-toolkit.sh DIR --libraries` makes it), among the packages of `python3` (PyTorch brings them), in
# /usr/local/cuda*/lib64, and where the system looks anyway. Each comparison of the kernels runs in a process of its own, so that
# one that breaks the GPU's state fails alone. What a comparison prints behind `= ` is shown in its row. The exit status is 0 if
# every row is ok.
set -euo pipefail

# A comparison that takes longer hangs.
TEST_SECONDS=120

# The libraries that the binary looks for itself, each with its names from the best on.
LIBRARIES=("libcublas.so.13 libcublas.so.12" "libcublasLt.so.13 libcublasLt.so.12" "libcurand.so.10")

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

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
  messages=$(cargo test --release --locked --package candlepower --package candlepower-kernels \
    --features candlepower/cuda --test cuda_kernels --no-run --message-format json)
  python3 -c '
import json, shutil, sys
messages = map(json.loads, filter(None, sys.stdin))
built = [m for m in messages if m.get("executable") and m["target"]["name"] == "cuda_kernels"]
shutil.copy(built[-1]["executable"], sys.argv[1])' "$dir/cuda_kernels" <<<"$messages"
  cp "${CARGO_TARGET_DIR:-target}/release/candlepower" scripts/gpu-check.sh "$dir"
  echo "gpu-check: take $dir to the GPU machine and run gpu-check.sh there"
}

# Folders that may hold the libraries, one a line.
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

# Sets LD_LIBRARY_PATH to the folders of the libraries, and says which are not found.
find_libraries() {
  local path='' names name place found
  for names in "${LIBRARIES[@]}"; do
    found=''
    for name in $names; do
      while IFS= read -r place; do
        [ -n "$place" ] && [ -e "$place/$name" ] && found=$place/$name && break 2
      done < <(places)
      found=$(ldconfig -p 2>/dev/null | awk -v name="$name" '$1 == name { print $NF; exit }')
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
row() { # row NAME RESULT SECONDS DETAIL
  [ "$2" = ok ] || failed=1
  printf '%-44s %-8s %8s  %s\n' "$1" "$2" "$3" "$4"
}

# check NAME COMMAND..: a row with the outcome of a command.
check() {
  local name=$1 start=$EPOCHREALTIME output result=ok detail seconds
  shift
  output=$(timeout "$TEST_SECONDS" "$@" 2>&1) || result=FAILED
  seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  detail=$(sed -n 's/^\(test .* \.\.\. \)\{0,1\}= //p' <<<"$output" | tail -n 1)
  if [ "$result" = FAILED ]; then
    echo "$output" >>"$here/gpu-check.log"
    detail=$(grep -A 1 -m 1 -E 'panicked|ERROR|error' <<<"$output" | tr '\n' ' ')
  fi
  row "$name" "$result" "$seconds" "${detail:0:160}"
}

run() {
  [ -x "$here/candlepower" ] && [ -x "$here/cuda_kernels" ] ||
    stop "candlepower and cuda_kernels are not beside this script: \`scripts/gpu-check.sh build DIR\` puts them there"
  : >"$here/gpu-check.log"
  row check result seconds detail
  failed=0
  find_libraries
  "$here/candlepower" doctor | sed -n 's/^ *\(driver\|gpu\)/\1/p'
  local tests name
  tests=$("$here/cuda_kernels" --list --format terse | sed -n 's/: test$//p')
  [ -n "$tests" ] || row cuda_kernels MISSING - "the binary has no comparisons"
  for name in $tests; do
    check "$name" "$here/cuda_kernels" --exact "$name" --nocapture --test-threads 1
  done
  [ "$failed" = 0 ] || echo "gpu-check: not all is ok; the output of what failed is in $here/gpu-check.log"
  exit "$failed"
}

case ${1:-run} in
  build) build "${2:?usage: scripts/gpu-check.sh build DIR}" ;;
  run) run ;;
  *) stop "usage: gpu-check.sh [build DIR]" ;;
esac
