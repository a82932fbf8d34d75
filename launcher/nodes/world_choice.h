// With how many nodes an elastic job trains. Pure.
//
// The global batch and the micro-batch stay as they are, so the number of ranks must divide what is
// left between them: the micro-batches of a step. A number of nodes that does not is refused by
// name, and the next smaller one that does is used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::launcher {

// Samples of a step on all ranks, and of one micro-batch on one rank. 0: the program's
// configuration is not known, and every number of ranks will do.
struct BatchSizes {
  int64_t global = 0;
  int64_t micro = 0;
};

// Whether `ranks` ranks take whole micro-batches, and all the same number.
bool Divides(const BatchSizes& batch, int64_t ranks);

struct WorldNode {
  std::string name;
  int ranks = 1;
};

struct WorldRequest {
  std::vector<WorldNode> nodes;  // Those that live, the preferred ones first.
  int nodes_min = 1;
  int nodes_max = 1;
  BatchSizes batch;
};

struct WorldChoice {
  int nodes = 0;     // The first so many of the request; 0: no number of them will do.
  std::string note;  // What was refused and which nodes wait for it; "": nothing.
};

WorldChoice ChooseWorld(const WorldRequest& request);

}  // namespace dtrain::launcher
