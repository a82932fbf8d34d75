# dtrain with everything that ./dev deps installs, built once. Ranks need no Python at run time, but
# LibTorch comes from the PyPI wheel under .deps.
#
#   docker build -t dtrain .
#   docker run --rm -it --shm-size 1g dtrain ./dev train
FROM debian:bookworm-slim
WORKDIR /opt/dtrain
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git sudo \
    && rm -rf /var/lib/apt/lists/*
# Dependencies first: a change of the sources does not install them again.
COPY dev ./dev
RUN ./dev deps && rm -rf /var/lib/apt/lists/*
COPY . .
RUN ./dev build release
ENV PATH="/opt/dtrain/build/release/bin:${PATH}"
CMD ["dtrain", "--help"]
