# A server on the CPU. Build: docker build -t candlepower . (podman build --format docker -t candlepower .)

# Rust 1.95 or later with a C and C++ compiler, on a system whose C library is not newer than that of BASE.
ARG BUILDER=docker.io/library/rust:1.95-bookworm
# Whatever has glibc and libgcc; nothing else of it is needed.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BUILDER} AS builder
WORKDIR /src
COPY . .
RUN cargo build --release --locked --features full \
 && install -D target/release/candlepower /image/candlepower \
 && install -d /image/data

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="candlepower" \
      org.opencontainers.image.description="OpenAI-compatible inference server in Rust, on the CPU" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=builder /image/candlepower /usr/local/bin/candlepower
COPY --from=builder --chown=10001:10001 /image/data /data
# Within a container every address is the engine's to publish or not.
ENV BLAZE_HOST=0.0.0.0 \
    PRISM_HOST=0.0.0.0 \
    HF_HOME=/data
USER 10001:10001
VOLUME /data
EXPOSE 8000 30000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m CMD ["candlepower", "health"]
ENTRYPOINT ["candlepower"]
CMD ["serve", "demo"]
