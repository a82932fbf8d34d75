#include "c10/util/Type.h"
#include "dtrain/batch_source.h"

namespace dtrain::internal {

std::string SourceTypeName(const char* type_name) { return c10::demangle(type_name); }

}  // namespace dtrain::internal
