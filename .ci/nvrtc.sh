#!/usr/bin/env bash
# Fetches from PyPI into a folder of its own the two versions of NVRTC that the tests of the CUDA kernels want, so that every
# kernel can be compiled without a GPU: that which kernels/registers.txt was made by, and the old one which made the PTX that
# the program carries. Prints the folders that LLAMA_TRACE_NVRTC is to name. Prints nothing where there is no pip or no
# network, and says so.
set -euo pipefail
folder=${1:-target/tmp/nvrtc}
find_them() { find "$folder" \( -name 'libnvrtc.so.12' -o -name 'libnvrtc.so.13' \) -printf '%h\n' 2>/dev/null | sort; }
if [ "$(find_them | wc -l)" -lt 2 ]; then
    { python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check \
        "nvidia-cuda-nvrtc==13.2.*" "nvidia-cuda-nvrtc-cu12==12.0.*"; } 1>&2 ||
        { echo "skipped: NVRTC cannot be fetched (no pip, or no network)" 1>&2; exit 0; }
fi
find_them | while read -r found; do realpath "$found"; done | paste -sd: -
