# dtrain on a host with RDMA NICs (RoCE or InfiniBand): what the CPU or CUDA image lacks to use them.
#
#   docker build -t dtrain-roce --build-arg BASE=dtrain-cuda -f docker/roce.Dockerfile .
#   docker run --rm -it --gpus all --network host --ipc host --device /dev/infiniband \
#       --cap-add IPC_LOCK --ulimit memlock=-1 -v "$PWD":/work dtrain-roce dtrain doctor
#
# The network is the host's, because RoCE's addresses belong to its interfaces; memory that NICs reach
# is locked. perftest has ib_write_bw, the peer that a slow link is compared with.
ARG BASE=dtrain
FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ibverbs-providers ibverbs-utils iproute2 libibverbs1 perftest rdma-core \
    && rm -rf /var/lib/apt/lists/*
CMD ["dtrain", "doctor"]
