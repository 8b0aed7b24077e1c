#!/usr/bin/env bash
# Cargo as scripts/build-wheel.sh gives it to maturin in tests: the library is built together with the workspace. `cargo xtask
# test` has done so, and on its own it would have other features of its dependencies, which would all be built again.
set -euo pipefail
[ "$1" = rustc ] || exec cargo "$@"
# The library is for any Python, so maturin's choice of one changes nothing but what has to be built again.
unset PYO3_BUILD_EXTENSION_MODULE PYO3_CONFIG_FILE PYO3_ENVIRONMENT_SIGNATURE PYO3_PYTHON
exec cargo build --workspace --lib --bins --tests --locked --features candlepower/full \
    --message-format json-render-diagnostics
