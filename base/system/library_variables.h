// Environment variables that dtrain sets for libraries that read theirs once, such as NCCL.
#pragma once

#include <string>
#include <vector>

namespace dtrain {

struct LibraryVariable {
  std::string name;
  std::string value;
  std::string reason;  // Half a sentence: "because ...".
};

// Sets those in this process that are not set, and logs each of `variables` with its reason.
// REQUIRES: the library has not read them yet, and no other thread reads the environment.
void SetLibraryVariables(const std::vector<LibraryVariable>& variables);

}  // namespace dtrain
