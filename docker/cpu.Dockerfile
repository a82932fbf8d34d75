# dtrain for training on CPU cores. The image holds the installed wheel and LibTorch; no compiler.
#
#   docker build -t dtrain -f docker/cpu.Dockerfile .
#   docker run --rm -it --shm-size 1g -v "$PWD":/work dtrain dtrain train
FROM debian:bookworm-slim AS build
WORKDIR /opt/src
# Dependencies first: a change of the sources does not install them again.
COPY dev ./dev
RUN ./dev deps && rm -rf /var/lib/apt/lists/*
COPY . .
RUN ./dev package --only wheel

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libcurl4 liburing2 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/dtrain
# torch as ./dev deps installed it: LibTorch and the libraries of its CPU half, without the CUDA wheels.
COPY --from=build /opt/src/.deps/python/lib/python3.11/site-packages/ /opt/dtrain/lib/python3.11/site-packages/
COPY --from=build /opt/src/dist/ /tmp/dist/
RUN /opt/dtrain/bin/pip install --no-cache-dir --no-deps /tmp/dist/dtrain-*.whl && rm -r /tmp/dist
ENV PATH="/opt/dtrain/bin:${PATH}"
WORKDIR /work
CMD ["dtrain", "--help"]
