#include "base/dl/verbs.h"

#include "base/dl/open_once.h"
#include "base/status.h"

namespace dtrain {
namespace {

absl::StatusOr<VerbsFunctions> BindVerbs(const DynamicLibrary& library) {
  VerbsFunctions f;
  DT_RETURN_IF_ERROR(library.Bind("ibv_get_device_list", &f.get_device_list));
  DT_RETURN_IF_ERROR(library.Bind("ibv_free_device_list", &f.free_device_list));
  DT_RETURN_IF_ERROR(library.Bind("ibv_get_device_name", &f.get_device_name));
  DT_RETURN_IF_ERROR(library.Bind("ibv_open_device", &f.open_device));
  DT_RETURN_IF_ERROR(library.Bind("ibv_close_device", &f.close_device));
  DT_RETURN_IF_ERROR(library.Bind("ibv_query_device", &f.query_device));
  DT_RETURN_IF_ERROR(library.Bind("ibv_query_port", &f.query_port));
  DT_RETURN_IF_ERROR(library.Bind("ibv_query_gid", &f.query_gid));
  DT_RETURN_IF_ERROR(library.Bind("ibv_alloc_pd", &f.alloc_pd));
  DT_RETURN_IF_ERROR(library.Bind("ibv_dealloc_pd", &f.dealloc_pd));
  DT_RETURN_IF_ERROR(library.Bind("ibv_reg_mr", &f.reg_mr));
  DT_RETURN_IF_ERROR(library.Bind("ibv_dereg_mr", &f.dereg_mr));
  DT_RETURN_IF_ERROR(library.Bind("ibv_create_comp_channel", &f.create_comp_channel));
  DT_RETURN_IF_ERROR(library.Bind("ibv_destroy_comp_channel", &f.destroy_comp_channel));
  DT_RETURN_IF_ERROR(library.Bind("ibv_get_cq_event", &f.get_cq_event));
  DT_RETURN_IF_ERROR(library.Bind("ibv_ack_cq_events", &f.ack_cq_events));
  DT_RETURN_IF_ERROR(library.Bind("ibv_create_cq", &f.create_cq));
  DT_RETURN_IF_ERROR(library.Bind("ibv_destroy_cq", &f.destroy_cq));
  DT_RETURN_IF_ERROR(library.Bind("ibv_create_qp", &f.create_qp));
  DT_RETURN_IF_ERROR(library.Bind("ibv_modify_qp", &f.modify_qp));
  DT_RETURN_IF_ERROR(library.Bind("ibv_destroy_qp", &f.destroy_qp));
  DT_RETURN_IF_ERROR(library.Bind("ibv_wc_status_str", &f.wc_status_str));
  DT_RETURN_IF_ERROR(library.Bind("ibv_get_async_event", &f.get_async_event));
  DT_RETURN_IF_ERROR(library.Bind("ibv_ack_async_event", &f.ack_async_event));
  // These functions are optional: older libraries lack them.
  (void)library.Bind("ibv_reg_mr_iova2", &f.reg_mr_iova2);
  (void)library.Bind("ibv_query_ece", &f.query_ece);
  (void)library.Bind("ibv_set_ece", &f.set_ece);
  (void)library.Bind("_ibv_query_gid_table", &f.query_gid_table);
  return f;
}

}  // namespace

absl::StatusOr<const Verbs*> Verbs::Open() {
  DT_ASSIGN_OR_RETURN(const VerbsFunctions* const functions,
                      OpenOnce<VerbsFunctions>(
                          {"libibverbs.so.1"},
                          absl::NotFoundError("no RDMA library (install libibverbs1)"), BindVerbs));
  static const auto* const verbs = new Verbs(*functions);
  return verbs;
}

}  // namespace dtrain
