#include "runtime/engine/record/forward_witness.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"
#include "c10/util/Exception.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

constexpr size_t kNamesMax = 4;

struct ModuleAt {
  std::string path;  // "" of the model itself.
  const torch::nn::Module* module = nullptr;
};

std::vector<ModuleAt> ModulesOf(const torch::nn::Module& model) {
  std::vector<ModuleAt> modules = {{"", &model}};
  for (const auto& child : model.named_modules("", /*include_self=*/false)) {
    modules.push_back({child.key(), child.value().get()});
  }
  return modules;
}

bool Overlaps(const at::Tensor& parameter, const LastRead::Range& range) {
  if (!parameter.defined() || !parameter.has_storage() ||
      parameter.storage().unsafeGetStorageImpl() != range.storage) {
    return false;
  }
  const auto width = static_cast<int64_t>(parameter.itemsize());
  const int64_t begin = parameter.storage_offset() * width;
  return begin < range.end && range.begin < begin + parameter.numel() * width;
}

// "a", "a and b", "a, b and c".
std::string Listed(const std::vector<std::string>& names) {
  if (names.size() == 1) {
    return names[0];
  }
  return absl::StrCat(absl::StrJoin(names.begin(), names.end() - 1, ", "), " and ", names.back());
}

// "fc.weight and fc.bias of fc (torch::nn::LinearImpl)"; the module only if there is one alone.
// "": no parameter of the model was read.
std::string NamesOf(const torch::nn::Module& model, const LastRead& read) {
  std::vector<std::string> names;
  std::vector<ModuleAt> owners;
  size_t parameters = read.more;
  for (const ModuleAt& at : ModulesOf(model)) {
    bool owns = false;
    for (const auto& parameter : at.module->named_parameters(/*recurse=*/false)) {
      if (std::none_of(
              read.ranges.begin(), read.ranges.begin() + static_cast<ptrdiff_t>(read.count),
              [&](const LastRead::Range& range) { return Overlaps(parameter.value(), range); })) {
        continue;
      }
      owns = true;
      ++parameters;
      if (names.size() < kNamesMax) {
        names.push_back(at.path.empty() ? parameter.key()
                                        : absl::StrCat(at.path, ".", parameter.key()));
      }
    }
    if (owns) {
      owners.push_back(at);
    }
  }
  if (names.empty()) {
    return "";
  }
  if (parameters > names.size()) {
    names.push_back(absl::StrCat(parameters - names.size(), " more"));
  }
  std::string text = Listed(names);
  if (owners.size() == 1 && read.more == 0) {
    const std::string& path = owners[0].path;
    absl::StrAppend(&text, " of ", path.empty() ? "the model" : path, " (",
                    owners[0].module->name(), ")");
  }
  return text;
}

// The modules of the type whose forward is the innermost in LibTorch's backtrace that is one of a
// type in the model. Empty: it names none.
std::vector<ModuleAt> ForwardIn(const torch::nn::Module& model, const c10::Error& error) {
  if (error.backtrace() == nullptr) {
    return {};
  }
  const std::vector<ModuleAt> modules = ModulesOf(model);
  for (const absl::string_view frame : absl::StrSplit(error.backtrace()->get(), '\n')) {
    std::vector<ModuleAt> of_its_type;
    for (const ModuleAt& at : modules) {
      if (absl::StrContains(frame, absl::StrCat(" ", at.module->name(), "::forward("))) {
        of_its_type.push_back(at);
      }
    }
    if (!of_its_type.empty()) {
      return of_its_type;
    }
  }
  return {};
}

// A GPU reports an error of its own after the operation that it comes from, at any later one.
bool IsOfDevice(const std::exception& error) {
  return absl::StrContains(error.what(), "CUDA error");
}

}  // namespace

void ForwardWitness::Begin(Pass pass) {
  pass_ = pass;
  if (!watch_.has_value() && (always_ || !seen_[static_cast<size_t>(pass)])) {
    watch_.emplace(module_.parameters());
  }
  if (watch_.has_value()) {
    ForgetLastRead();
  }
}

void ForwardWitness::End(Pass pass) {
  seen_[static_cast<size_t>(pass)] = true;
  if (!always_) {
    watch_.reset();
  }
}

std::string ForwardWitness::Describe(const std::exception& error) const {
  if (IsOfDevice(error)) {
    return "";
  }
  if (watch_.has_value()) {
    const LastRead& read = LastReadOfThread();
    const std::string names = read.count > 0 ? NamesOf(module_, read) : "";
    if (names.empty()) {
      return "";
    }
    return *read.thrown_by != '\0' ? absl::StrCat(read.thrown_by, " failed, which reads ", names)
                                   : absl::StrCat("read last: ", names);
  }
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  std::string known;
  if (torch != nullptr) {
    if (const std::vector<ModuleAt> forward = ForwardIn(module_, *torch); !forward.empty()) {
      known = absl::StrCat("in ", forward[0].module->name(), "::forward");
      if (forward.size() == 1 && !forward[0].path.empty()) {
        return absl::StrCat(known, ", of which the model has one: ", forward[0].path);
      }
      known += "; ";
    }
  }
  if (pass_ == Pass::kBackward) {  // A GPU's has threads of its own, of which nothing is known.
    return "";
  }
  return absl::StrCat(known, env::kBacktrace, "=1 names the parameters that were read last",
                      torch != nullptr ? " and logs a backtrace" : "");
}

}  // namespace dtrain
