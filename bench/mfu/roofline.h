// A roofline (Williams et al. 2009) as an SVG file: what a step's operations reach of what memory
// and arithmetic of the device allow. Pure; free of LibTorch.
#pragma once

#include <string>
#include <vector>

#include "bench/mfu/breakdown.h"

namespace dtrain::bench {

struct RooflinePoint {
  std::string label;
  Work work = Work::kGemm;
  double flop_per_byte = 0;
  double flops_per_s = 0;
  double step_share = 0;  // The share of the step's time.
};

struct Roof {
  std::string name;
  double flops_per_s = 0;
};

struct Roofline {
  std::string title;
  std::string subtitle;
  double bytes_per_s = 0;   // The slope: the rate of a copy, read plus written.
  std::vector<Roof> roofs;  // Flat; the first is the one that the slope meets.
  std::vector<RooflinePoint> points;
};

// REQUIRES: bytes_per_s and the first roof are above 0. Points outside the axes (three decades
// of rates, 0.1 to 1,000 FLOP a byte) are drawn at their edge.
std::string RooflineSvg(const Roofline& roofline);

}  // namespace dtrain::bench
