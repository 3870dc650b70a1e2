#!/bin/sh
# Used by the Dockerfile, inside builds: Python packages into /opt/pagewire, which has no pip of its own.
#
#   install.sh project [EXTRA]              the environment, pagewire's metadata and command, what every service needs
#   install.sh extras EXTRA [PACKAGE ...]   what an extra of it needs more; the packages come without what they need
#
# From the wheels in /wheels if there are any, else from package indexes; EXTRA_INDEX_URL names one more.
set -eu
constraints=/build/constraints/${CONSTRAINTS:-cpu.txt}

export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_QUIET=1
if ls /wheels/*.whl >/dev/null 2>&1; then
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
elif [ -n "${EXTRA_INDEX_URL:-}" ]; then
  export PIP_EXTRA_INDEX_URL="$EXTRA_INDEX_URL"
fi

install() {
  /opt/installer/bin/pip --python /opt/pagewire/bin/python install --constraint "$constraints" "$@"
}

case $1 in
  project)
    python -m venv /opt/installer
    python -m venv --without-pip /opt/pagewire
    # The folder has no modules: they are copied into images as they are, to /app.
    touch /build/README.md
    install "/build${2:+[$2]}"
    ;;
  extras)
    install "pagewire[$2]"
    shift 2
    [ $# -eq 0 ] || install --no-deps "$@"
    ;;
esac
