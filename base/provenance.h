// Where a measurement comes from: the facts that every results file of a program has.
//
// The twin of bench/provenance.py, which adds what only a checkout knows (whether the tree differs
// from its commit) and decides which results are kept. Thread-safe.
#pragma once

#include <string>

#include "base/json.h"

namespace dtrain {

// The CPU's name with family and model ("AMD EPYC (family 25, model 1)"), since a hypervisor may
// call CPUs that differ by one name. "unknown" where Linux does not name it.
std::string CpuName();

// {"date", "version", "commit", "cpu", "cores", "load_average"}, to be asked for before the first
// measurement: afterwards the load would be the measurement's own. "commit" is the one that the
// build was configured from, "" outside a checkout; "date" is UTC's; "load_average" is that of the
// last minute, -1 where it is not known.
Json Provenance();

}  // namespace dtrain
