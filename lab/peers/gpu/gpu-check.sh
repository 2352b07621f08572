#!/usr/bin/env bash
# Checks and measures the GPU of this machine with the files in this folder. Needs bash, python3
# with PyTorch, and a driver.
# ./gpu-check.sh [--quick] [--output FILE.json] [--python PROGRAM]: see docs/reference/gpu-check.md.
set -u
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=python3
words=()
while [ $# -gt 0 ]; do
  if [ "$1" = --python ]; then
    [ $# -gt 1 ] || { echo "error: --python needs a value: write --python PROGRAM" >&2; exit 2; }
    python=$2
    shift
  else
    words+=("$1")
  fi
  shift
done
if ! command -v "$python" >/dev/null; then
  echo "error: no $python: expected a Python 3.9 or newer; give it with --python PROGRAM" >&2
  exit 2
fi
exec "$python" -B -u "$folder/gpu_check.py" ${words[@]+"${words[@]}"}
