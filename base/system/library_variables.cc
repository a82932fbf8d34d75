#include "base/system/library_variables.h"

#include <stdlib.h>

#include "base/log.h"

namespace dtrain {

void SetLibraryVariables(const std::vector<LibraryVariable>& variables) {
  for (const LibraryVariable& variable : variables) {
    setenv(variable.name.c_str(), variable.value.c_str(), /*overwrite=*/0);
    DT_LOG(Info) << "setting " << variable.name << "=" << variable.value << ", " << variable.reason;
  }
}

}  // namespace dtrain
