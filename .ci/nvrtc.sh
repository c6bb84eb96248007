#!/usr/bin/env bash
# Fetches NVRTC, of the version that kernels/registers.txt was made by, from PyPI into a folder of its own, so that every
# CUDA kernel can be compiled without a GPU, and prints the folder that LLAMA_TRACE_NVRTC is to name. Prints nothing where
# there is no pip or no network, and says so.
set -euo pipefail
folder=${1:-target/tmp/nvrtc}
find_it() { find "$folder" -name 'libnvrtc.so.1*' -printf '%h\n' 2>/dev/null | head -1; }
if [ -z "$(find_it)" ]; then
    { python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check "nvidia-cuda-nvrtc==13.2.*"; } 1>&2 ||
        { echo "skipped: NVRTC cannot be fetched (no pip, or no network)" 1>&2; exit 0; }
fi
found=$(find_it)
[ -z "$found" ] || realpath "$found"
