// The provenance of a measurement: facts that every results file of a program holds.
//
// The twin of bench/provenance.py, which adds facts of the checkout (whether the tree differs from
// its commit) and decides which results are kept. Thread-safe.
#pragma once

#include <string>

#include "base/json.h"

namespace dtrain {

// The CPU's name with family and model ("AMD EPYC (family 25, model 1)"), since a hypervisor may
// call CPUs that differ by one name. "unknown" if Linux does not name it.
std::string CpuName();

// {"date", "version", "commit", "cpu", "cores", "load_average"}, taken before the first
// measurement, because later the load would be the measurement's own. "commit" is that of the
// build, "" outside a checkout; "date" is in UTC; "load_average" is that of the last minute, -1 if
// unknown.
Json Provenance();

}  // namespace dtrain
