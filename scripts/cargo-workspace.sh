#!/usr/bin/env bash
# The cargo that scripts/build-wheel.sh passes to maturin in tests. It builds the library together with the workspace,
# as `cargo xtask test` has done. On its own the library would give its dependencies other features, and all would be
# built again.
set -euo pipefail
[ "$1" = rustc ] || exec cargo "$@"
# The library works with any Python. Without these variables maturin's choice of one does not cause a new build.
unset PYO3_BUILD_EXTENSION_MODULE PYO3_CONFIG_FILE PYO3_ENVIRONMENT_SIGNATURE PYO3_PYTHON
exec cargo build --workspace --lib --bins --tests --locked --features candlepower/full \
    --message-format json-render-diagnostics
