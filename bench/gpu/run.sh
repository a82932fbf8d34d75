#!/bin/sh
# Tests and measures dtrain on this machine's GPU; without one it says so and ends with 64.
# DTRAIN_PYTHON names the Python that has torch (default: python3).
here=$(cd "$(dirname "$0")" && pwd)
exec "${DTRAIN_PYTHON:-python3}" "$here/bench/gpu/run.py" --pack "$here" "$@"
