#include "bench/mfu/roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace dtrain::bench::roofline_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Roofline Example() {
  return {.title = "a <model>",
          .subtitle = "cpu \"x\" & y",
          .bytes_per_s = 20e9,
          .roofs = {{"GEMM", 100e9}, {"peak", 150e9}},
          .points = {{"mm 1x2x3", Work::kGemm, 50, 80e9, 0.5},
                     {"attention", Work::kAttention, 200, 40e9, 0.1}}};
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(RooflineSvg, IsOneElementWithEveryPointAndRoof) {
  const std::string svg = RooflineSvg(Example());
  EXPECT_EQ(svg.rfind("<svg ", 0), 0U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_THAT(svg, HasSubstr("copy 20 GB/s"));
  EXPECT_THAT(svg, HasSubstr("GEMM 100 GFLOP/s"));
  EXPECT_THAT(svg, HasSubstr("peak 150 GFLOP/s"));
  EXPECT_THAT(svg, HasSubstr("mm 1x2x3: 50.0 %, 80 GFLOP/s"));
  EXPECT_EQ(Count(svg, "<text"), Count(svg, "</text>"));
}

TEST(RooflineSvg, TextIsEscaped) {
  const std::string svg = RooflineSvg(Example());
  EXPECT_THAT(svg, HasSubstr("a &lt;model&gt;"));
  EXPECT_THAT(svg, HasSubstr("cpu &quot;x&quot; &amp; y"));
  EXPECT_THAT(svg, Not(HasSubstr("<model>")));
}

TEST(RooflineSvg, WhatLiesOutsideTheAxesIsDrawnAtTheirEdge) {
  Roofline roofline = Example();
  roofline.points = {{"far", Work::kGemm, 1e30, 1e30, 0.1}, {"none", Work::kGemm, 0, 0, 0}};
  const std::string svg = RooflineSvg(roofline);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(RooflineSvgDeathTest, NeedsARoof) {
  Roofline roofline = Example();
  roofline.roofs.clear();
  EXPECT_EXIT(RooflineSvg(roofline), ::testing::ExitedWithCode(70), "without a roof");
}

}  // namespace
}  // namespace dtrain::bench::roofline_test
