// A bounded parser for the small XML documents that S3 and STS reply with. Pure.
//
// Elements, text, CDATA, comments, processing instructions and the predefined entities; attributes
// are skipped, and of a name with a namespace only its last part is kept. Document types are
// refused, so no entity can grow.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::checkpoint::s3 {

inline constexpr size_t kXmlBytesMax = 8 << 20;
inline constexpr size_t kXmlDepthMax = 32;
inline constexpr size_t kXmlElementsMax = 200'000;

struct XmlElement {
  std::string name;
  std::string text;  // All text directly inside, as it stands.
  std::vector<XmlElement> children;

  // The first child of this name; null when there is none.
  const XmlElement* Child(absl::string_view child) const;
  // The text of the first child of this name; "" when there is none.
  std::string TextOf(absl::string_view child) const;
};

// The root element. InvalidArgument: not well-formed, or above one of the limits.
absl::StatusOr<XmlElement> ParseXml(absl::string_view text);

}  // namespace dtrain::checkpoint::s3
