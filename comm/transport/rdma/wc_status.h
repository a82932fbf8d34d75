// Explains the status of a failed completion and what to do about it. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::comm {

// ibv_wc_status, by value; real_verbs.cc checks that they agree.
inline constexpr int kWcSuccess = 0;
inline constexpr int kWcLocalProtection = 4;
inline constexpr int kWcFlushed = 5;
inline constexpr int kWcRemoteAccess = 10;
inline constexpr int kWcRetriesExceeded = 12;
inline constexpr int kWcNotReadyRetriesExceeded = 13;

struct WcDescription {
  absl::string_view name;     // "IBV_WC_RETRY_EXC_ERR".
  absl::string_view meaning;  // "the peer did not acknowledge any of the packets".
  absl::string_view remedy;   // "check the cable ...".
};

// The description of any value; an unknown one has a name that says so.
WcDescription DescriptionOf(int status);

// One line: "the peer acknowledged nothing (IBV_WC_RETRY_EXC_ERR, vendor error 0x81, port rxe0/1 is
// DOWN): check ...".
std::string DescribeWc(int status, unsigned vendor_error, absl::string_view port,
                       absl::string_view port_state);

}  // namespace dtrain::comm
