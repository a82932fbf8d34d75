# dtrain for GPUs: the wheel with its CUDA plugin, and torch with all CUDA libraries that it depends on.
#
#   docker build -t dtrain-cuda -f docker/cuda.Dockerfile .
#   docker run --rm -it --gpus all --shm-size 1g -v "$PWD":/work dtrain-cuda dtrain train
#
# The driver comes from the host by the NVIDIA Container Toolkit.
FROM nvidia/cuda:13.0.1-devel-ubuntu22.04 AS toolkit

FROM debian:bookworm-slim AS build
WORKDIR /opt/src
COPY dev ./dev
RUN ./dev deps && rm -rf /var/lib/apt/lists/*
# The toolkit needs nothing of its own system but an older glibc than Debian's.
COPY --from=toolkit /usr/local/cuda-13.0/ /usr/local/cuda/
ENV PATH="/usr/local/cuda/bin:${PATH}"
# nccl.h, which the plugin is compiled with: of the release that torch depends on.
RUN .deps/python/bin/python -c "import importlib.metadata as m; \
        print(next(r.split(';')[0] for r in m.requires('torch') if r.startswith('nvidia-nccl')))" >/tmp/nccl \
    && .deps/python/bin/python -m pip install --no-cache-dir --no-deps -r /tmp/nccl
COPY . .
RUN DTRAIN_CUDA=ON ./dev package --only wheel && test -e build/release/lib/libdtrain_cuda.so

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libcurl4 liburing2 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/dtrain
COPY --from=build /opt/src/dist/ /tmp/dist/
RUN /opt/dtrain/bin/pip install --no-cache-dir /tmp/dist/dtrain-*.whl && rm -r /tmp/dist
ENV PATH="/opt/dtrain/bin:${PATH}"
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
CMD ["dtrain", "--help"]
