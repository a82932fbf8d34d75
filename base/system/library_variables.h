// Sets environment variables for libraries that read them only once, such as NCCL. Not thread-safe.
#pragma once

#include <string>
#include <vector>

namespace dtrain {

struct LibraryVariable {
  std::string name;
  std::string value;
  std::string reason;  // Half a sentence: "because ...".
};

// Sets those of `variables` that are not set in this process, and logs each with its reason.
// REQUIRES: the library has not read them yet, and no other thread reads the environment.
void SetLibraryVariables(const std::vector<LibraryVariable>& variables);

}  // namespace dtrain
