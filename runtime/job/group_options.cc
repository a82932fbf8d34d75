#include "runtime/job/group_options.h"

#include "absl/time/time.h"

namespace dtrain {

comm::GroupOptions GroupOptionsFrom(const Config& config) {
  const NetworkConfig& network = config.comm_network();
  comm::GroupOptions options;
  options.timeout = absl::Seconds(config.comm_timeout_seconds());
  if (const auto least = config.comm_timeout_min_seconds(); least.has_value()) {
    options.timeout_min = absl::Seconds(*least);
  }
  options.connect_timeout = options.timeout;
  options.deterministic = config.deterministic();
  options.allow_shared_memory = network.transport != "tcp";
  options.network = network.transport == "rdma"   ? comm::Network::kRdma
                    : network.transport == "auto" ? comm::Network::kAutomatic
                                                  : comm::Network::kTcp;
  options.host_interface = network.interface;
  options.tcp_connections = network.tcp_connections;
  options.tcp_tls = config.Find("comm.tcp.tls")->get<bool>();
  options.rdma.device = network.rdma_device;
  options.rdma.gid_index = network.rdma_gid_index;
  options.rdma.queue_pairs = network.rdma_queue_pairs;
  options.rdma.traffic_class = network.rdma_traffic_class;
  options.rdma.service_level = network.rdma_service_level;
  options.rdma.timeout = network.rdma_timeout;
  options.rdma.retries = network.rdma_retries;
  options.rdma.direct_bytes_min = config.Find("comm.rdma.direct_bytes_min")->get<size_t>();
  options.rdma.kept_bytes_max = config.Find("comm.rdma.kept_bytes_max")->get<size_t>();
  return options;
}

}  // namespace dtrain
