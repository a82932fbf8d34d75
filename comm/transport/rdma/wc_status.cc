#include "comm/transport/rdma/wc_status.h"

#include <array>
#include <cstddef>

#include "absl/strings/str_format.h"

namespace dtrain::comm {
namespace {

constexpr absl::string_view kBug = "this is a bug of dtrain or of the RDMA driver: report it";
constexpr absl::string_view kOtherEnd = "look for the error of the other rank";
constexpr absl::string_view kHardware = "check the RDMA device and its firmware (dmesg)";
constexpr absl::string_view kPath =
    "check the cable and the switch port, that both ranks are in one network, that no firewall "
    "drops UDP port 4791, and PFC or ECN if it happens under load; or set comm.transport to tcp";

constexpr std::array<WcDescription, 24> kDescriptions = {{
    {"IBV_WC_SUCCESS", "done", ""},
    {"IBV_WC_LOC_LEN_ERR", "a message was longer than its place", kBug},
    {"IBV_WC_LOC_QP_OP_ERR", "the device took the request for a wrong one", kBug},
    {"IBV_WC_LOC_EEC_OP_ERR", "the device took the request for a wrong one", kBug},
    {"IBV_WC_LOC_PROT_ERR", "the memory to send was not registered", kBug},
    {"IBV_WC_WR_FLUSH_ERR", "the queue pair was in error already", kOtherEnd},
    {"IBV_WC_MW_BIND_ERR", "a memory window was refused", kBug},
    {"IBV_WC_BAD_RESP_ERR", "the peer gave an answer that makes no sense", kHardware},
    {"IBV_WC_LOC_ACCESS_ERR", "the peer wrote where it may not", kBug},
    {"IBV_WC_REM_INV_REQ_ERR", "the peer's device refused the request", kBug},
    {"IBV_WC_REM_ACCESS_ERR", "the peer's memory was not registered", kBug},
    {"IBV_WC_REM_OP_ERR", "the peer's device could not do it", kOtherEnd},
    {"IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded: the peer acknowledges nothing",
     kPath},
    {"IBV_WC_RNR_RETRY_EXC_ERR", "the peer had posted no receive", kBug},
    {"IBV_WC_LOC_RDD_VIOL_ERR", "a domain did not fit", kBug},
    {"IBV_WC_REM_INV_RD_REQ_ERR", "the peer's device refused the request", kBug},
    {"IBV_WC_REM_ABORT_ERR", "the peer aborted the request", kOtherEnd},
    {"IBV_WC_INV_EECN_ERR", "a context number was wrong", kBug},
    {"IBV_WC_INV_EEC_STATE_ERR", "a context was in a wrong state", kBug},
    {"IBV_WC_FATAL_ERR", "the device failed", kHardware},
    {"IBV_WC_RESP_TIMEOUT_ERR", "the peer's device answered too late", kPath},
    {"IBV_WC_GENERAL_ERR", "the device failed", kHardware},
    {"IBV_WC_TM_ERR", "tag matching failed", kBug},
    {"IBV_WC_TM_RNDV_INCOMPLETE", "tag matching failed", kBug},
}};

}  // namespace

WcDescription DescriptionOf(int status) {
  if (status < 0 || static_cast<size_t>(status) >= kDescriptions.size()) {
    return {"a status that dtrain does not know", "the device failed", kHardware};
  }
  return kDescriptions[static_cast<size_t>(status)];
}

std::string DescribeWc(int status, unsigned vendor_error, absl::string_view port,
                       absl::string_view port_state) {
  WcDescription description = DescriptionOf(status);
  if (port_state != "ACTIVE") {  // The device's status is then only an effect of the port's state.
    description.remedy = kPath;
  }
  return absl::StrFormat("%s (%s = %d, vendor error 0x%x, own port %s is %s): %s",
                         description.meaning, description.name, status, vendor_error, port,
                         port_state, description.remedy);
}

}  // namespace dtrain::comm
