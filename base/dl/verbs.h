// libibverbs.so.1 opened at run time, so that a host without RDMA still runs dtrain.
//
// The table holds the exported functions that dtrain calls; the data path (post, poll, modify of a
// QP's inline twins) goes through function pointers inside the verbs objects and needs no symbol.
// verbs types are forward-declared; include <infiniband/verbs.h> where they are used. Thread-safe,
// as verbs is.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

struct ibv_ah;
struct ibv_async_event;
struct ibv_comp_channel;
struct ibv_context;
struct ibv_cq;
struct ibv_device;
struct ibv_device_attr;
struct ibv_ece;
struct ibv_gid_entry;
struct ibv_mr;
struct ibv_pd;
struct ibv_port_attr;
struct ibv_qp;
struct ibv_qp_attr;
struct ibv_qp_init_attr;
union ibv_gid;

namespace dtrain {

struct VerbsFunctions {
  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  const char* (*get_device_name)(ibv_device* device) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* attr) = nullptr;
  // The library's compatible form; fields added later stay as the caller set them.
  int (*query_port)(ibv_context* context, uint8_t port, ibv_port_attr* attr) = nullptr;
  int (*query_gid)(ibv_context* context, uint8_t port, int index, ibv_gid* gid) = nullptr;
  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* pd) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* data, size_t bytes, int access) = nullptr;
  int (*dereg_mr)(ibv_mr* mr) = nullptr;
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context) = nullptr;
  int (*destroy_comp_channel)(ibv_comp_channel* channel) = nullptr;
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** user) = nullptr;
  void (*ack_cq_events)(ibv_cq* cq, unsigned count) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                       int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* cq) = nullptr;
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attr) = nullptr;
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attr, int mask) = nullptr;
  int (*destroy_qp)(ibv_qp* qp) = nullptr;
  const char* (*wc_status_str)(int status) = nullptr;
  int (*get_async_event)(ibv_context* context, ibv_async_event* event) = nullptr;
  void (*ack_async_event)(ibv_async_event* event) = nullptr;

  // The rest is null if the library is too old.
  // Registers with access flags that the kernel may ignore: since rdma-core 28.
  ibv_mr* (*reg_mr_iova2)(ibv_pd* pd, void* data, size_t bytes, uint64_t iova,
                          unsigned access) = nullptr;
  // Since rdma-core 30.
  int (*query_ece)(ibv_qp* qp, ibv_ece* ece) = nullptr;
  int (*set_ece)(ibv_qp* qp, ibv_ece* ece) = nullptr;
  // The GIDs of all ports, by a call to the kernel: since rdma-core 32. Below 0: -errno.
  ssize_t (*query_gid_table)(ibv_context* context, ibv_gid_entry* entries, size_t entries_max,
                             uint32_t flags, size_t entry_bytes) = nullptr;
};

class Verbs {
 public:
  // The process's table, opened once and kept mapped. NotFound, with the names that were tried,
  // when the host has no libibverbs.
  static absl::StatusOr<const Verbs*> Open();
  // A table of given functions: the seam for tests.
  explicit Verbs(const VerbsFunctions& functions) : functions_(functions) {}

  const VerbsFunctions& functions() const { return functions_; }

 private:
  const VerbsFunctions functions_;
};

}  // namespace dtrain
