// Precompiled for every torch-free target: what nearly all of their files include and what costs
// most.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
