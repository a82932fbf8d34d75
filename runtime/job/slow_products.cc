#include "runtime/job/slow_products.h"

#include <algorithm>
#include <array>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "dtrain/fp8.h"

namespace dtrain {
namespace {

constexpr double kRatioMin = 1.5;  // Less is no reason to train in another type.

double SecondsOf(absl::FunctionRef<void()> product) {
  const int64_t start = Clock::Real().MonotonicNanos();
  product();
  return std::max(1e-9, static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-9);
}

// The products of a linear layer, forward and backward: a CPU without instructions for a type is
// far slower at some of them than at others.
void LayerProducts(const at::Tensor& m) {
  at::mm(m, m.t());
  at::mm(m, m);
  at::mm(m.t(), m);
}

// In turns, so that what else the machine does slows none of them alone.
ProductRates RatesOfSize(int64_t size, at::ScalarType type, const Fp8Options& fp8) {
  const at::Tensor wide =
      at::linspace(-1, 1, size * size, at::TensorOptions(at::kFloat)).view({size, size});
  const at::Tensor narrow = wide.to(type);
  constexpr int kRounds = 4;  // The first warms up, and counts where it is no slower.
  std::array<double, 3> fastest = {1e9, 1e9, 1e9};
  const auto take = [&fastest](size_t which, absl::FunctionRef<void()> product) {
    fastest[which] = std::min(fastest[which], SecondsOf(product));
  };
  for (int round = 0; round < kRounds; ++round) {
    take(0, [&] { LayerProducts(wide); });
    take(1, [&] { LayerProducts(narrow); });
    if (fp8.enabled) {
      take(2, [&] { ops::Fp8Linear(narrow, narrow, /*bias=*/{}, fp8); });
    }
  }
  const double flop = 2.0 * static_cast<double>(size * size * size);
  return {3 * flop / fastest[0], 3 * flop / fastest[1], fp8.enabled ? flop / fastest[2] : 0};
}

bool IsSlow(double rate, double fp32) { return rate > 0 && fp32 > kRatioMin * rate; }

std::string HowSlow(double rate, double fp32) {
  return absl::StrFormat("%.1f times as long as in fp32 (%.3g and %.3g GFLOP/s)", fp32 / rate,
                         rate * 1e-9, fp32 * 1e-9);
}

}  // namespace

ProductRates MeasureProducts(const Config& config) {
  const at::NoGradGuard no_grad;
  const bool half = config.precision().kind == PrecisionConfig::Kind::kFloat16;
  const at::ScalarType type = half ? at::kHalf : at::kBFloat16;
  const Fp8Options fp8 = Fp8OptionsOf(config);
  ProductRates rates = RatesOfSize(128, type, fp8);
  // A larger product tells more, where it takes no time that people would notice.
  constexpr double kPatientRate = 2e9;
  const double slowest = fp8.enabled ? std::min(rates.narrow, rates.fp8) : rates.narrow;
  if (slowest > kPatientRate) {
    rates = RatesOfSize(256, type, fp8);
  }
  return rates;
}

std::string SlowProductsWarning(const std::string& type, const ProductRates& rates) {
  const bool slow_narrow = IsSlow(rates.narrow, rates.fp32);
  const bool slow_fp8 = IsSlow(rates.fp8, rates.fp32);
  if (!slow_narrow && !slow_fp8) {
    return "";
  }
  std::string what;
  if (slow_narrow) {
    what = absl::StrCat("on this CPU matrix products in ", type, " take ",
                        HowSlow(rates.narrow, rates.fp32));
  }
  if (slow_fp8) {
    absl::StrAppend(&what, slow_narrow ? ", and in " : "on this CPU matrix products in ",
                    "FP8, which is emulated, ", slow_narrow ? "" : "take ",
                    HowSlow(rates.fp8, rates.fp32));
  }
  std::vector<std::string> keys;
  if (slow_fp8) {
    keys.push_back("fp8.enabled=false");
  }
  if (slow_narrow) {
    keys.push_back(absl::StrCat(type, ".enabled=false"));
  }
  return absl::StrCat(
      what, "; to train faster, set ", absl::StrJoin(keys, " and "), ", or use a GPU",
      slow_narrow ? absl::StrCat(" or a CPU with instructions for ", type) : std::string());
}

}  // namespace dtrain
