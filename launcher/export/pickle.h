// Writes JSON values as a Python pickle (protocol 2), for readers that take nothing else. Only
// dicts, lists, strings, numbers, booleans and None are written, so loading one runs no code. Pure.
#pragma once

#include <string>

#include "base/json.h"

namespace dtrain::launcher {

std::string ToPickle(const Json& value);

}  // namespace dtrain::launcher
