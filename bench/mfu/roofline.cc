#include "bench/mfu/roofline.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"

namespace dtrain::bench {
namespace {

constexpr double kWidth = 1040;
constexpr double kHeight = 560;
constexpr double kLeft = 84;
constexpr double kRight = 640;  // The plot's right side; the list of points stands beside it.
constexpr double kTop = 76;
constexpr double kBottom = 496;
constexpr double kListLeft = 664;
constexpr size_t kListRowsMax = 20;

// One axis: `decades` powers of ten from 10^first on, along [begin, end] pixels.
struct Axis {
  double first;
  double decades;
  double begin;
  double end;

  double At(double value) const {
    const double place = (std::log10(value) - first) / decades;
    return begin + (end - begin) * std::clamp(place, 0.0, 1.0);
  }
  // The powers of ten on it.
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    for (double power = std::ceil(first); power <= first + decades; ++power) {
      ticks.push_back(std::pow(10, power));
    }
    return ticks;
  }
};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

const char* Colour(Work work) {
  return work == Work::kGemm ? "#1b6ca8" : work == Work::kAttention ? "#c2571a" : "#3a7d44";
}

// "1.2 TFLOP/s".
std::string Rate(double per_s, const char* unit) {
  for (const auto& [size, prefix] : {std::pair(1e12, "T"), std::pair(1e9, "G")}) {
    if (per_s >= size) {
      return absl::StrFormat("%.3g %s%s", per_s / size, prefix, unit);
    }
  }
  return absl::StrFormat("%.3g M%s", per_s / 1e6, unit);
}

void Text(std::string& out, double x, double y, const std::string& text, const char* style = "") {
  absl::StrAppendFormat(&out, "<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, style,
                        Escape(text));
}

void Line(std::string& out, double x1, double y1, double x2, double y2, const char* style) {
  absl::StrAppendFormat(&out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1,
                        y1, x2, y2, style);
}

void Grid(std::string& out, const Axis& x, const Axis& y) {
  constexpr char kFaint[] = "stroke=\"#e3e3e3\"";
  for (const double value : x.Ticks()) {
    Line(out, x.At(value), kTop, x.At(value), kBottom, kFaint);
    Text(out, x.At(value), kBottom + 18, absl::StrFormat("%g", value), " text-anchor=\"middle\"");
  }
  for (const double value : y.Ticks()) {
    Line(out, kLeft, y.At(value), kRight, y.At(value), kFaint);
    Text(out, kLeft - 8, y.At(value) + 4, Rate(value, ""), " text-anchor=\"end\"");
  }
  Text(out, (kLeft + kRight) / 2, kBottom + 42, "arithmetic intensity, FLOP a byte",
       " text-anchor=\"middle\"");
  Text(out, kLeft - 8, kTop - 12, "FLOP/s", " text-anchor=\"end\"");
}

void Roofs(std::string& out, const Roofline& roofline, const Axis& x, const Axis& y) {
  const double least = std::pow(10, x.first);
  const double floor = std::pow(10, y.first);
  const double ridge = roofline.roofs[0].flops_per_s / roofline.bytes_per_s;
  // From where the slope enters the plot, at its left edge or at its bottom.
  const double from = std::max(least, floor / roofline.bytes_per_s);
  Line(out, x.At(from), y.At(from * roofline.bytes_per_s), x.At(ridge),
       y.At(roofline.roofs[0].flops_per_s), "stroke=\"#222\" stroke-width=\"2\"");
  const double middle =
      std::sqrt(from * ridge);  // The middle of the slope, whose name stands below it.
  Text(out, x.At(middle) + 10, y.At(middle * roofline.bytes_per_s) + 14,
       absl::StrCat("copy ", Rate(roofline.bytes_per_s, "B/s")));
  for (size_t i = 0; i < roofline.roofs.size(); ++i) {
    const Roof& roof = roofline.roofs[i];
    const double height = y.At(roof.flops_per_s);
    Line(
        out, i == 0 ? x.At(ridge) : kLeft, height, kRight, height,
        i == 0 ? "stroke=\"#222\" stroke-width=\"2\"" : "stroke=\"#222\" stroke-dasharray=\"6 4\"");
    Text(out, kRight - 4, height - 6,
         absl::StrCat(roof.name, " ", Rate(roof.flops_per_s, "FLOP/s")), " text-anchor=\"end\"");
  }
}

void Points(std::string& out, const std::vector<RooflinePoint>& points, const Axis& x,
            const Axis& y) {
  Text(out, kListLeft, kTop - 12, "operation: share of the step, rate", " font-weight=\"bold\"");
  for (size_t i = 0; i < points.size(); ++i) {
    const RooflinePoint& point = points[i];
    const double radius = 4 + 14 * std::sqrt(std::clamp(point.step_share, 0.0, 1.0));
    const double cx = x.At(point.flop_per_byte);
    const double cy = y.At(point.flops_per_s);
    absl::StrAppendFormat(&out,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\" "
                          "fill-opacity=\"0.55\" stroke=\"%s\"><title>%s</title></circle>\n",
                          cx, cy, radius, Colour(point.work), Colour(point.work),
                          Escape(point.label));
    if (i >= kListRowsMax) {
      continue;
    }
    const std::string number = absl::StrCat(i + 1);
    Text(out, cx, cy + 4, number, " text-anchor=\"middle\" font-size=\"10\"");
    const double row = kTop + 10 + 20 * static_cast<double>(i);
    absl::StrAppendFormat(&out,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"8\" fill=\"%s\" "
                          "fill-opacity=\"0.55\"/>\n",
                          kListLeft + 8, row - 4, Colour(point.work));
    Text(out, kListLeft + 8, row, number, " text-anchor=\"middle\" font-size=\"10\"");
    Text(out, kListLeft + 24, row,
         absl::StrFormat("%s: %.1f %%, %s", point.label, 100 * point.step_share,
                         Rate(point.flops_per_s, "FLOP/s")));
  }
}

}  // namespace

std::string RooflineSvg(const Roofline& roofline) {
  DT_CHECK(roofline.bytes_per_s > 0 && !roofline.roofs.empty() && roofline.roofs[0].flops_per_s > 0)
      << " a roofline without a roof";
  double highest = 0;
  for (const Roof& roof : roofline.roofs) {
    highest = std::max(highest, roof.flops_per_s);
  }
  constexpr double kDecades = 3;
  constexpr double kHeadroom = 0.3;               // Above the highest roof, for its name.
  const Axis x{-1, kDecades + 1, kLeft, kRight};  // 0.1 to 1,000.
  const Axis y{std::log10(highest) + kHeadroom - kDecades, kDecades, kBottom, kTop};
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
      kWidth, kHeight, kWidth, kHeight);
  Text(out, kLeft, 26, roofline.title, " font-size=\"16\" font-weight=\"bold\"");
  Text(out, kLeft, 46, roofline.subtitle, " fill=\"#555\"");
  Grid(out, x, y);
  Roofs(out, roofline, x, y);
  Points(out, roofline.points, x, y);
  out += "</svg>\n";
  return out;
}

}  // namespace dtrain::bench
