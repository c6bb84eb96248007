#!/usr/bin/env bash
# Downloads from PyPI the two versions of NVRTC that the tests of the CUDA kernels need to compile kernels without a
# GPU. Version 13.2 made kernels/registers.txt, and version 12.0 made the PTX that the program contains. Prints the
# value for LLAMA_TRACE_NVRTC: the folders of both versions. Without pip or a network, prints no folder, and reports
# this on standard error.
set -euo pipefail
folder=${1:-target/tmp/nvrtc}
find_them() { find "$folder" \( -name 'libnvrtc.so.12' -o -name 'libnvrtc.so.13' \) -printf '%h\n' 2>/dev/null | sort; }
if [ "$(find_them | wc -l)" -lt 2 ]; then
    { python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check \
        "nvidia-cuda-nvrtc==13.2.*" "nvidia-cuda-nvrtc-cu12==12.0.*"; } 1>&2 ||
        { echo "skipped: NVRTC cannot be fetched (no pip, or no network)" 1>&2; exit 0; }
fi
find_them | while read -r found; do realpath "$found"; done | paste -sd: -
