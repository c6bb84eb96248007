#!/usr/bin/env bash
# Packs the tests that run on a GPU, with their fixtures, into a folder (target/gpu) that needs neither a compiler nor a
# network where it is run: `target/gpu/run PART`, where PART is golden, replay, check, kernels or bench. Further arguments are
# cargo's; --release is the default.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-target/gpu}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- --release
mkdir -p "$folder/fixtures"
# `replay` runs models, the crate for CUDA its kernels, and the program's own tests the benchmark.
built=$(cargo test --locked --lib --test replay --no-run --message-format=json "$@")
for crate in llama_trace llama_trace_cuda replay; do
    binary=$(sed -n "s/.*\"name\":\"$crate\".*\"executable\":\"\([^\"]*\)\".*/\1/p" <<< "$built" | tail -1)
    strip -s -o "$folder/$crate" "$binary"
    gzip -f "$folder/$crate"
done
cp -r fixtures/golden "$folder/fixtures/"
cat > "$folder/run" <<'RUN'
#!/usr/bin/env bash
# Runs one part of the tests on GPU number LLAMA_TRACE_GPU, which is 0 where nobody says. Where it is set to nothing, on the
# processor in its place, for which the kernels' sources and a C++ compiler must be there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export LLAMA_TRACE_FIXTURES=$here/fixtures LLAMA_TRACE_GPU=${LLAMA_TRACE_GPU-0}
[ -n "$LLAMA_TRACE_GPU" ] || unset LLAMA_TRACE_GPU
# What is compiled is kept for the next part.
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
# A part is made to take less than eight minutes; one that hangs is ended.
exec timeout 480 "$here/$tests_of" "${tests[@]}" --nocapture
RUN
chmod +x "$folder/run"
size=$(du -sk "$folder" | cut -f1)
echo "$folder: $size KiB"
[ "$size" -lt 60000 ] || { echo "more than 60 MB" 1>&2; exit 1; }
