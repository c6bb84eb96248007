# The program alone, linked statically, with nothing around it:
#
#     docker build --tag llama-trace .
#     docker run --rm --interactive --tty llama-trace --prompt "Once upon a time" --step
#
# A model on this machine: docker run … --volume DIR:/data:ro llama-trace --model /data
FROM rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev
WORKDIR /source
COPY . .
# A static program cannot load the CUDA driver.
RUN cargo build --release --locked --no-default-features --features capture,hub,png
# Folders for temporary files and for downloaded models; an empty image has none.
RUN mkdir -p /root-of-image/tmp /root-of-image/data && strip target/release/llama-trace

FROM scratch
COPY --from=build /root-of-image /
COPY --from=build /source/target/release/llama-trace /bin/llama-trace
ENV PATH=/bin HF_HOME=/data/huggingface TERM=xterm-256color
WORKDIR /data
ENTRYPOINT ["llama-trace"]
