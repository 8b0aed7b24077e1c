#!/usr/bin/env bash
# Fetches the JSON Schema Test Suite for `cargo xtask schema-suite`, from the source package of Python's `jsonschema`.
#
#   scripts/fetch-schema-suite.sh FOLDER
#   cargo xtask schema-suite FOLDER/draft2020-12 FOLDER/draft7
#
# The suite's own package on npm has no tests: it downloads them from a repository.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
readonly VERSION=4.26.0
mkdir -p "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work" "jsonschema==$VERSION"
tar --extract --gzip --file "$work/jsonschema-$VERSION.tar.gz" --directory "$1" --strip-components 3 \
    "jsonschema-$VERSION/json/tests"
