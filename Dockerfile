# A server on the CPU: docker build -t candlepower . (podman build --format docker -t candlepower .)
# A server on NVIDIA GPUs of one compute capability, here 9.0: docker build --build-arg CUDA_COMPUTE_CAP=90 -t candlepower .

# Rust 1.95 or later with a C and C++ compiler, on a system whose C library is not newer than that of BASE.
ARG BUILDER=docker.io/library/rust:1.95-bookworm
# Any image with glibc and libgcc. Certificate authorities are copied from the builder, because slim images have none.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BUILDER} AS builder
# Compute capability of the GPUs, as for scripts/cuda-toolkit.sh. Empty for the CPU.
ARG CUDA_COMPUTE_CAP=
WORKDIR /src
COPY . .
RUN set -e; features=full; \
    if [ -n "$CUDA_COMPUTE_CAP" ]; then \
      python3 -c 'import ensurepip' || { apt-get update && apt-get install -y --no-install-recommends python3-venv; }; \
      scripts/cuda-toolkit.sh /cuda; \
      scripts/cuda-toolkit.sh /cuda-libraries --libraries; \
      . /cuda/env.sh; \
      features=full,cuda; \
    fi; \
    cargo build --release --locked --features "$features"; \
    install -D target/release/candlepower /image/candlepower; \
    install -D --mode=644 /etc/ssl/certs/ca-certificates.crt /image/certs/ca-certificates.crt; \
    install -D --mode=644 --target-directory=/image/doc LICENSE THIRD-PARTY.txt; \
    install -d /image/data /cuda-libraries/lib

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="candlepower" \
      org.opencontainers.image.description="OpenAI-compatible inference server in Rust" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=builder /image/candlepower /usr/local/bin/candlepower
COPY --from=builder /image/certs /etc/ssl/certs
COPY --from=builder /image/doc /usr/share/doc/candlepower
COPY --from=builder --chown=10001:10001 /image/data /data
# The first folder is empty in an image for the CPU. A cluster may mount the driver's libraries in the other two.
COPY --from=builder /cuda-libraries/lib /usr/local/lib/cuda
ENV LD_LIBRARY_PATH=/usr/local/lib/cuda:/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Inside a container the server listens on all addresses. The engine decides which ports it publishes.
ENV BLAZE_HOST=0.0.0.0 \
    PRISM_HOST=0.0.0.0 \
    HF_HOME=/data
USER 10001:10001
VOLUME /data
EXPOSE 8000 30000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m CMD ["candlepower", "health"]
ENTRYPOINT ["candlepower"]
CMD ["serve", "demo"]
