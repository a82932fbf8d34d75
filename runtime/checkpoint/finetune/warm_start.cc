#include "dtrain/warm_start.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/work_count.h"
#include "checkpoint/restore/find_model.h"
#include "dtrain/model_files.h"
#include "dtrain/optimizer_config.h"
#include "runtime/checkpoint/group_exchange.h"
#include "runtime/checkpoint/restore/stored_weights.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/gather_texts.h"
#include "runtime/job/job_state.h"
#include "runtime/model/dtypes.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

constexpr size_t kProblemsListedMax = 8;

struct WarmTensor {
  std::vector<std::string> names;  // In the module: several, where weights are tied.
  std::string file_name;           // In the files.
  at::Tensor tensor;

  const std::string& name() const { return names.front(); }
};

// Parameters and buffers, each tensor once with all of its names.
std::vector<WarmTensor> WarmTensorsOf(const torch::nn::Module& module) {
  std::vector<WarmTensor> all;
  std::unordered_map<const void*, size_t> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    const auto [known, is_new] = seen.try_emplace(tensor.unsafeGetTensorImpl(), all.size());
    if (is_new) {
      all.push_back({.names = {}, .file_name = "", .tensor = tensor});
    }
    all[known->second].names.push_back(name);
  };
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    add(item.key(), item.value());
  }
  return all;
}

// The first of the tensor's names by which the files have it, or the first of all.
std::string FileNameOf(const WarmTensor& item, const WarmStartOptions& options,
                       const ModelFiles& files) {
  std::string first;
  for (const std::string& name : item.names) {
    const std::string file_name = options.public_name ? options.public_name(name) : name;
    if (files.Contains(file_name)) {
      return file_name;
    }
    first = first.empty() ? file_name : first;
  }
  return first;
}

absl::Status CheckNamesSomething(const char* option, const std::vector<std::string>& patterns,
                                 const std::vector<WarmTensor>& all) {
  std::vector<std::string> names;
  for (const WarmTensor& item : all) {
    names.insert(names.end(), item.names.begin(), item.names.end());
  }
  for (const std::string& pattern : patterns) {
    if (std::none_of(names.begin(), names.end(),
                     [&](const std::string& name) { return MatchesPattern(pattern, name); })) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "WarmStartOptions::%s: \"%s\" names no parameter or buffer of the model; nearest: %s (* "
          "stands for any text)",
          option, pattern, absl::StrJoin(NearestNames(pattern, names), ", ")));
    }
  }
  return absl::OkStatus();
}

// Whether a pattern matches one of the tensor's names.
bool NamesTensor(const std::vector<std::string>& patterns, const WarmTensor& item) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return std::any_of(item.names.begin(), item.names.end(),
                       [&](const std::string& name) { return MatchesPattern(pattern, name); });
  });
}

// Takes out of `wanted` what the files lack, where that is allowed.
absl::Status CheckInFiles(const ModelFiles& files, const WarmStartOptions& options,
                          std::vector<WarmTensor>& wanted, std::vector<std::string>& kept) {
  std::vector<std::string> problems;
  std::vector<WarmTensor> found;
  for (WarmTensor& item : wanted) {
    if (!files.Contains(item.file_name)) {
      if (options.allow_missing) {
        kept.push_back(item.name());
      } else {
        problems.push_back(absl::StrCat(item.file_name, " is not there"));
      }
      continue;
    }
    DT_ASSIGN_OR_RETURN(const ModelTensor from, files.Describe(item.file_name));
    if (item.tensor.sizes() != at::IntArrayRef(from.shape)) {
      problems.push_back(absl::StrFormat("%s is [%s] and not [%s]", item.file_name,
                                         absl::StrJoin(from.shape, ", "),
                                         absl::StrJoin(item.tensor.sizes(), ", ")));
    } else if (const at::ScalarType type = item.tensor.scalar_type();
               from.dtype != type &&
               !(c10::isFloatingType(from.dtype) && c10::isFloatingType(type))) {
      problems.push_back(absl::StrFormat("%s is of type %s and not %s", item.file_name,
                                         c10::toString(from.dtype), c10::toString(type)));
    }
    found.push_back(std::move(item));
  }
  if (problems.empty()) {
    wanted = std::move(found);
    return absl::OkStatus();
  }
  const size_t all = problems.size();
  problems.resize(std::min(all, kProblemsListedMax));
  if (all > problems.size()) {
    problems.push_back(absl::StrCat("and ", all - problems.size(), " more"));
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "WarmStart: %s does not fit the model: %s; leave these tensors out (exclude), give their "
      "names in the files (public_name), or set allow_missing",
      files.directory(), absl::StrJoin(problems, ", ")));
}

absl::Status ReadTensor(const ModelFiles& files, const WarmTensor& item) {
  if (item.tensor.is_contiguous() && item.tensor.is_cpu()) {
    return files.Read(item.file_name, item.tensor);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor whole =
      at::empty(item.tensor.sizes(), item.tensor.options().device(at::kCPU).requires_grad(false));
  DT_RETURN_IF_ERROR(files.Read(item.file_name, whole));
  item.tensor.detach().copy_(whole);
  return absl::OkStatus();
}

// Rank 0's part.
absl::StatusOr<WarmStarted> ReadWarmStart(torch::nn::Module& module, const std::string& path,
                                          const WarmStartOptions& options) {
  std::vector<WarmTensor> all = WarmTensorsOf(module);
  DT_RETURN_IF_ERROR(CheckNamesSomething("include", options.include, all));
  DT_RETURN_IF_ERROR(CheckNamesSomething("exclude", options.exclude, all));
  DT_ASSIGN_OR_RETURN(const std::string folder, FindModelFolder(path));
  DT_ASSIGN_OR_RETURN(const auto files, ModelFiles::Open(folder));
  WarmStarted result;
  std::vector<WarmTensor> wanted;
  for (WarmTensor& item : all) {
    if (NamesTensor(options.include, item) && !NamesTensor(options.exclude, item)) {
      item.file_name = FileNameOf(item, options, *files);
      wanted.push_back(std::move(item));
    } else {
      result.kept.push_back(item.name());
    }
  }
  DT_RETURN_IF_ERROR(CheckInFiles(*files, options, wanted, result.kept));
  Conversions converted;
  for (const WarmTensor& item : wanted) {
    DT_ASSIGN_OR_RETURN(const ModelTensor from, files->Describe(item.file_name));
    DT_RETURN_IF_ERROR(ReadTensor(*files, item));
    WorkCount::Note();
    result.read.push_back(item.name());
    const absl::StatusOr<DType> stored = DTypeOf(from.dtype);
    const absl::StatusOr<DType> type = DTypeOf(item.tensor.scalar_type());
    if (stored.ok() && type.ok()) {
      converted.Add(*stored, *type);
    }
  }
  if (!converted.Text().empty()) {
    DT_LOG(Info) << "weights of " << files->directory() << converted.Text();
  }
  return result;
}

Json EncodeResult(const absl::StatusOr<WarmStarted>& result) {
  if (!result.ok()) {
    return {{"code", static_cast<int>(result.status().code())},
            {"message", std::string(result.status().message())}};
  }
  return {{"code", 0}, {"read", result->read}, {"kept", result->kept}};
}

}  // namespace

absl::StatusOr<std::string> FindModelFolder(const std::string& path) {
  return checkpoint::FindModel(path);
}

absl::StatusOr<WarmStarted> WarmStart(Job& job, torch::nn::Module& module, const std::string& path,
                                      const WarmStartOptions& options) {
  const absl::Duration timeout = absl::Seconds(job.config().comm_timeout_seconds());
  absl::StatusOr<WarmStarted> mine = WarmStarted();
  // The others wait while rank 0 reads, so that an exception, as of public_name, has to reach them
  // too.
  const auto read = [&]() -> absl::Status {
    if (job.rank() == 0) {
      const absl::Status thrown = CallSafely([] { return std::string("in WarmStart"); },
                                             [&] {
                                               mine = ReadWarmStart(module, path, options);
                                               return absl::OkStatus();
                                             });
      mine = thrown.ok() ? std::move(mine) : absl::StatusOr<WarmStarted>(thrown);
    }
    return absl::OkStatus();
  };
  GroupExchange exchange(job.group(), job.state().heartbeat.get());
  DT_RETURN_IF_ERROR(exchange.Together(read, timeout));
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      GatherTexts(job.group(), job.rank() == 0 ? DumpJson(EncodeResult(mine)) : "",
                                  Deadline::After(timeout)));
  if (job.rank() == 0) {
    return mine;
  }
  DT_ASSIGN_OR_RETURN(const Json result, ParseJson(texts[0], "rank 0's warm start"));
  if (const int code = result["code"].get<int>(); code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(code), result["message"].get<std::string>());
  }
  return WarmStarted{result["read"].get<std::vector<std::string>>(),
                     result["kept"].get<std::vector<std::string>>()};
}

}  // namespace dtrain
