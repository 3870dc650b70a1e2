#!/usr/bin/env bash
# A Docker Engine for the container tests, where there is none: on Debian, as root, beside whatever else the machine runs.
#
#   scripts/container_engine.sh up            start an engine of its own with the base image; apt-get installs what is missing
#   scripts/container_engine.sh up compiler   the same, with the image that kernels are compiled in
#   scripts/container_engine.sh env           print what points docker at it:  eval "$(scripts/container_engine.sh env)"
#   scripts/container_engine.sh down          stop it and remove all that it made
#
# If an engine answers already, `up` and `env` leave it at that. Base images are pulled; if no registry can be reached,
# stand-ins are made from Debian's packages. Everything lives in $PAGEWIRE_ENGINE_DIR (default: /var/lib/pagewire-engine), a
# folder of ours alone: whoever else could write there would have what root runs. The machine's firewall is left alone, so containers reach each other and this machine their ports, but builds reach no package
# index: they take wheels from a folder (scripts/download_wheels.py).
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive
dir=${PAGEWIRE_ENGINE_DIR:-/var/lib/pagewire-engine}
socket=$dir/docker.sock

fail() { echo "error: no Docker Engine: $1" >&2; exit 1; }

answers() { timeout 10 docker version >/dev/null 2>&1; }

# Whether nobody but us can have put anything there: the folder itself, and each one above it.
is_private() {
  local path=$1 mode
  [ ! -L "$path" ] && [ -d "$path" ] && [ "$(stat -c %a "$path")" = 700 ] && [ -O "$path" ] || return 1
  while [ "$path" != / ]; do
    path=$(dirname "$path")
    mode=$(stat -c %a "$path")
    case $(stat -c %u "$path") in 0 | "$(id -u)") ;; *) return 1 ;; esac
    # Where others may write, none of them may move what is ours: the sticky bit.
    [ $((0$mode & 022)) = 0 ] || [ $((0$mode & 01000)) != 0 ] || return 1
  done
}

check_private() {
  is_private "$dir" || fail "$dir is not a folder of ours alone (mode 700); remove it, or set PAGEWIRE_ENGINE_DIR to another"
}

has_own() { is_private "$dir" && [ -S "$socket" ] && DOCKER_HOST=unix://$socket answers; }

install_engine() {
  command -v dockerd >/dev/null && command -v iptables >/dev/null && return
  [ "$(id -u)" = 0 ] || fail "it has to be installed, which takes root"
  command -v apt-get >/dev/null || fail "it has to be installed, which takes apt-get"
  apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends docker.io iptables mmdebstrap >/dev/null ||
    fail "apt-get could not install docker.io"
}

start_engine() {
  [ "$(id -u)" = 0 ] || fail "starting one takes root"
  mkdir -p "$(dirname "$dir")"
  mkdir -m 700 "$dir" 2>/dev/null || true  # somebody else's is found out next
  check_private
  [ -e /sys/class/net/docker0 ] || touch "$dir/made-docker0"
  setsid dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/dockerd.pid" --host "unix://$socket" \
    --iptables=false --ip6tables=false >"$dir/dockerd.log" 2>&1 </dev/null &
  local engine=$!
  for _ in $(seq 120); do
    has_own && return
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.5
  done
  fail "dockerd did not start: $(tail -n 1 "$dir/dockerd.log")"
}

# Usage: have_image NAME PACKAGES
have_image() {
  docker image inspect "$1" >/dev/null 2>&1 && return
  timeout 60 docker pull --quiet "$1" >/dev/null 2>&1 && return
  command -v mmdebstrap >/dev/null || apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null ||
    fail "$1 cannot be pulled, and mmdebstrap is missing"
  mmdebstrap --quiet --variant=minbase --include="$2" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
    bookworm "$dir/base.tar" 2>"$dir/base.log" || fail "$1 cannot be made: $(tail -n 1 "$dir/base.log")"
  docker import --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/bin:/usr/sbin:/sbin' "$dir/base.tar" "$1" >/dev/null
  rm "$dir/base.tar"
}

up() {
  if [ "${DOCKER_HOST:-}" != "unix://$socket" ] && command -v docker >/dev/null && answers; then
    echo "a Docker Engine runs already"
    return
  fi
  install_engine
  has_own || start_engine
  export DOCKER_HOST=unix://$socket
  # Without overlays every layer is a copy of all below it.
  [ "$(docker info --format '{{.Driver}}')" != vfs ] || { down; fail "no overlay file systems here"; }
  local python=python3,python3-venv,python-is-python3,ca-certificates
  have_image python:3.11-slim-bookworm "$python"
  if [ "${1:-}" = compiler ]; then have_image python:3.11-bookworm "$python,g++"; fi
  echo "a Docker Engine runs at $DOCKER_HOST"
}

stop_engine() {
  local pid
  [ -f "$dir/dockerd.pid" ] || return 0
  pid=$(cat "$dir/dockerd.pid")
  kill "$pid" 2>/dev/null || return 0
  for _ in $(seq 120); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.5
  done
  fail "dockerd does not end"
}

down() {
  [ -e "$dir" ] || [ -L "$dir" ] || return 0
  check_private
  # One that ends meanwhile is no reason to leave the engine running.
  { has_own && DOCKER_HOST=unix://$socket timeout 60 docker ps --quiet | DOCKER_HOST=unix://$socket timeout 60 xargs --no-run-if-empty docker kill >/dev/null; } || true
  stop_engine
  awk -v d="$dir/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort --reverse | xargs --no-run-if-empty --max-args=1 umount
  if [ -e "$dir/made-docker0" ]; then ip link delete docker0 2>/dev/null || true; fi
  rm -rf "$dir"
}

case ${1:-} in
  up) up "${2:-}" ;;
  env) if has_own; then echo "export DOCKER_HOST=unix://$socket"; fi ;;
  down) down ;;
  *) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
