#include "bench/mfu/breakdown.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace dtrain::bench {
namespace {

bool HasAny(absl::string_view name, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return absl::StrContains(name, part); });
}

bool IsAny(absl::string_view name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void Add(Breakdown& result, Work work, int64_t nanos) {
  result.seconds[static_cast<int>(work)] += static_cast<double>(nanos) * 1e-9;
}

struct Open {
  int64_t end_ns;
  Work work;
};

// The kind of work of a range nested in `outer`. All of attention (products, softmax) counts as
// attention, and all of a wait for peers as communication.
Work Nested(Work outer, Work own) {
  return outer == Work::kAttention || outer == Work::kCommunication ? outer : own;
}

class Totals {
 public:
  void Add(const std::string& name, int64_t nanos) {
    KernelTotal& total = by_name_[name];
    ++total.calls;
    total.seconds += 1e-9 * static_cast<double>(nanos);
  }
  std::vector<KernelTotal> LongestFirst() const {
    std::vector<KernelTotal> all;
    for (const auto& [name, total] : by_name_) {
      all.push_back({name, total.calls, total.seconds});
    }
    std::stable_sort(all.begin(), all.end(), [](const KernelTotal& a, const KernelTotal& b) {
      return a.seconds > b.seconds;
    });
    return all;
  }

 private:
  std::map<std::string, KernelTotal> by_name_;
};

}  // namespace

const char* WorkName(Work work) {
  constexpr std::array<const char*, kWorkKinds> kNames = {"GEMM", "attention", "memory-bound",
                                                          "communication exposed", "idle"};
  return kNames[static_cast<size_t>(work)];
}

double Breakdown::total() const {
  return std::accumulate(std::begin(seconds), std::end(seconds), 0.0);
}

double Breakdown::share(Work work) const {
  const double all = total();
  return all > 0 ? seconds[static_cast<int>(work)] / all : 0;
}

Work WorkOfOperation(absl::string_view name) {
  if (HasAny(name, {"scaled_dot_product", "flash_attention", "efficient_attention"})) {
    return Work::kAttention;
  }
  if (IsAny(name, {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv",
                   "aten::_scaled_mm", "dtrain::matmul", "mkldnn::_linear_pointwise"})) {
    return Work::kGemm;
  }
  if (IsAny(name, {"dtrain::wait"}) || absl::StartsWith(name, "nccl:")) {
    return Work::kCommunication;
  }
  if (name == "dtrain::update") {
    return Work::kMemoryBound;  // Its kernels are dtrain's own and announce no operation.
  }
  if (!absl::StartsWith(name, "aten::") && !absl::StartsWith(name, "dtrain::")) {
    return Work::kIdle;  // A node of autograd, a range of the user: what is inside counts.
  }
  if (IsAny(name,
            {"dtrain::data",     "dtrain::forward",     "dtrain::backward",     "aten::view",
             "aten::reshape",    "aten::_unsafe_view",  "aten::_reshape_alias", "aten::t",
             "aten::transpose",  "aten::permute",       "aten::expand",         "aten::unsqueeze",
             "aten::squeeze",    "aten::slice",         "aten::narrow",         "aten::select",
             "aten::as_strided", "aten::detach",        "aten::alias",          "aten::empty",
             "aten::empty_like", "aten::empty_strided", "aten::new_empty",      "aten::resize_",
             "aten::set_",       "aten::linear",        "aten::matmul",         "aten::numpy_T",
             "aten::flatten",    "aten::unflatten",     "aten::chunk",          "aten::split",
             "aten::to"})) {
    return Work::kIdle;
  }
  return Work::kMemoryBound;
}

Work WorkOfKernel(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  if (HasAny(lower, {"nccl"})) {
    return Work::kCommunication;
  }
  if (HasAny(lower, {"flash", "fmha", "attention", "cudnn_generated_fort_native_sdpa", "_sdpa_"})) {
    return Work::kAttention;
  }
  if (HasAny(lower, {"gemm", "nvjet", "cutlass", "xmma", "wgmma", "splitkreduce", "cublaslt"})) {
    return Work::kGemm;
  }
  return Work::kMemoryBound;
}

Breakdown BreakDownThread(std::vector<TimedRange> ranges, int64_t begin_ns, int64_t end_ns) {
  // An outer range comes before those that begin with it.
  std::sort(ranges.begin(), ranges.end(), [](const TimedRange& a, const TimedRange& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  Breakdown result;
  std::vector<Open> open;
  int64_t now = begin_ns;
  const auto advance = [&](int64_t to) {
    to = std::min(to, end_ns);
    while (now < to) {
      while (!open.empty() && open.back().end_ns <= now) {
        open.pop_back();
      }
      const int64_t until = open.empty() ? to : std::min(to, open.back().end_ns);
      Add(result, open.empty() ? Work::kIdle : open.back().work, until - now);
      now = until;
    }
  };
  for (const TimedRange& range : ranges) {
    if (range.end_ns <= begin_ns || range.begin_ns >= end_ns) {
      continue;
    }
    advance(range.begin_ns);
    while (!open.empty() && open.back().end_ns <= range.begin_ns) {
      open.pop_back();
    }
    const Work own = WorkOfOperation(range.name);
    open.push_back({range.end_ns, open.empty() ? own : Nested(open.back().work, own)});
  }
  advance(end_ns);
  return result;
}

Breakdown BreakDownDevice(const std::vector<TimedRange>& kernels, int64_t begin_ns,
                          int64_t end_ns) {
  struct Edge {
    int64_t at_ns;
    int delta;
    Work work;
  };
  std::vector<Edge> edges;
  for (const TimedRange& kernel : kernels) {
    const int64_t from = std::max(kernel.begin_ns, begin_ns);
    const int64_t to = std::min(kernel.end_ns, end_ns);
    if (from < to) {
      const Work work = WorkOfKernel(kernel.name);
      edges.push_back({from, 1, work});
      edges.push_back({to, -1, work});
    }
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.at_ns < b.at_ns; });
  Breakdown result;
  std::array<int, kWorkKinds> running = {};
  int64_t now = begin_ns;
  const auto first = [&] {
    const auto found =
        std::find_if(running.begin(), running.end(), [](int count) { return count > 0; });
    return found == running.end() ? Work::kIdle : static_cast<Work>(found - running.begin());
  };
  for (const Edge& edge : edges) {
    Add(result, first(), edge.at_ns - now);
    now = edge.at_ns;
    running[static_cast<size_t>(edge.work)] += edge.delta;
  }
  Add(result, first(), end_ns - now);
  return result;
}

std::vector<KernelTotal> TotalsByName(const std::vector<TimedRange>& kernels) {
  Totals totals;
  for (const TimedRange& kernel : kernels) {
    totals.Add(kernel.name, kernel.end_ns - kernel.begin_ns);
  }
  return totals.LongestFirst();
}

std::vector<KernelTotal> IdleAfterKernels(std::vector<TimedRange> kernels, int64_t begin_ns,
                                          int64_t end_ns) {
  std::sort(kernels.begin(), kernels.end(),
            [](const TimedRange& a, const TimedRange& b) { return a.begin_ns < b.begin_ns; });
  Totals totals;
  int64_t busy_until = begin_ns;
  std::string last;
  const auto idle_until = [&](int64_t at_ns) {
    if (at_ns > busy_until) {
      totals.Add(last, at_ns - busy_until);
    }
  };
  for (const TimedRange& kernel : kernels) {
    if (kernel.end_ns <= busy_until || kernel.begin_ns >= end_ns) {
      continue;
    }
    idle_until(kernel.begin_ns);
    busy_until = kernel.end_ns;
    last = kernel.name;
  }
  idle_until(end_ns);
  return totals.LongestFirst();
}

}  // namespace dtrain::bench
