#!/usr/bin/env bash
# Packs the tests that run on a GPU, and their fixtures, into a folder: .ci/gpu.sh [FOLDER [CARGO OPTIONS]]. The
# defaults are target/gpu and --release. On the machine with the GPU, `target/gpu/run PART` runs one part of the tests:
# golden, replay, check, kernels or bench. That machine needs no compiler and no network.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-target/gpu}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- --release
mkdir -p "$folder/fixtures"
# The test `replay` runs models, the tests of the CUDA crate run kernels, and the unit tests of the program run the
# benchmark.
built=$(cargo test --locked --lib --test replay --no-run --message-format=json "$@")
for crate in llama_trace llama_trace_cuda replay; do
    binary=$(sed -n "s/.*\"name\":\"$crate\".*\"executable\":\"\([^\"]*\)\".*/\1/p" <<< "$built" | tail -1)
    strip -s -o "$folder/$crate" "$binary"
    gzip -f "$folder/$crate"
done
cp -r fixtures/golden "$folder/fixtures/"
cat > "$folder/run" <<'RUN'
#!/usr/bin/env bash
# Runs one part of the tests on the GPU with the number LLAMA_TRACE_GPU (default: 0). If this variable is empty, the
# tests run on the processor instead. They then need the sources of the kernels and a C++ compiler.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export LLAMA_TRACE_FIXTURES=$here/fixtures LLAMA_TRACE_GPU=${LLAMA_TRACE_GPU-0}
[ -n "$LLAMA_TRACE_GPU" ] || unset LLAMA_TRACE_GPU
# Compiled kernels are kept for the next part.
export XDG_CACHE_HOME=${XDG_CACHE_HOME-$here/cache} CUDA_CACHE_PATH=${CUDA_CACHE_PATH-$here/cache/driver}
export CUDA_CACHE_MAXSIZE=${CUDA_CACHE_MAXSIZE-4294967296}
models=bits::cuda:: tests_of=replay
case ${1-} in
    golden) tests=("$models" --skip "${models}replay::" --skip "${models}check::") ;;
    replay | check) tests=("$models$1::") ;;
    kernels) tests_of=llama_trace_cuda tests=(tests::) ;;
    bench) tests_of=llama_trace tests=(cli::bench::tests::) ;;
    *) echo "usage: $0 golden|replay|check|kernels|bench" 1>&2; exit 2 ;;
esac
[ -x "$here/$tests_of" ] || gunzip -k "$here/$tests_of.gz"
# Each part takes less than eight minutes. A part that hangs is killed.
exec timeout 480 "$here/$tests_of" "${tests[@]}" --nocapture
RUN
chmod +x "$folder/run"
size=$(du -sk "$folder" | cut -f1)
echo "$folder: $size KiB"
[ "$size" -lt 60000 ] || { echo "more than 60 MB" 1>&2; exit 1; }
