// The XML of NCCL's topology and graph files: elements and attributes alone, as NCCL's own reader
// takes them (no text, no entities). Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {

struct NcclElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;  // In the file's order.
  std::vector<NcclElement> children;

  // The value of the attribute; "" when there is none.
  const std::string& Value(absl::string_view attribute) const;
};

// The root element. Comments and <?...?> are skipped. InvalidArgument, which begins with FILE:LINE:
// not well-formed, an attribute twice, or above a limit: 8 MiB, 200,000 elements, a depth of 64, 64
// attributes of an element, 255 bytes of a name or value, as in NCCL.
absl::StatusOr<NcclElement> ParseNcclXml(absl::string_view text, absl::string_view file);

// The text in NCCL's form: each element on a line, children indented by two spaces.
std::string FormatNcclXml(const NcclElement& root);

}  // namespace dtrain::launcher
