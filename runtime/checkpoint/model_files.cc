#include "dtrain/model_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "c10/util/accumulate.h"
#include "checkpoint/format/hugging_face_folder.h"
#include "runtime/checkpoint/model_tensors.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

constexpr int64_t kBlockElements = 1 << 20;  // Converted at a time.
constexpr size_t kListedMax = 12;            // Tensors of one kind in a message.

std::optional<at::ScalarType> ScalarTypeOf(const std::string& dtype) {
  static const auto* const types = new std::map<std::string, at::ScalarType>{
      {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}, {"F64", at::kDouble},
      {"I64", at::kLong},  {"I32", at::kInt},       {"U8", at::kByte},  {"BOOL", at::kBool}};
  const auto found = types->find(dtype);
  return found == types->end() ? std::nullopt : std::optional(found->second);
}

template <typename Shape>
std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// "missing 2 tensors: a [1, 2], b [3]".
std::string Listed(absl::string_view what, const std::vector<std::string>& items) {
  std::vector<std::string> shown(
      items.begin(), items.begin() + static_cast<ptrdiff_t>(std::min(items.size(), kListedMax)));
  if (items.size() > shown.size()) {
    shown.push_back(absl::StrCat("and ", items.size() - shown.size(), " more"));
  }
  return absl::StrCat(what, " ", items.size(),
                      items.size() == 1 ? " tensor: " : " tensors: ", absl::StrJoin(shown, ", "));
}

struct Target {
  std::string name;  // In the files.
  at::Tensor tensor;
};

// Parameters and buffers, each tensor once.
std::vector<Target> TargetsOf(const torch::nn::Module& module, const LoadModelOptions& options) {
  std::vector<Target> targets;
  std::unordered_set<const void*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      targets.push_back({options.public_name ? options.public_name(name) : name, tensor});
    }
  };
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    add(item.key(), item.value());
  }
  return targets;
}

absl::Status CheckFit(const std::vector<Target>& targets,
                      const checkpoint::HuggingFaceFolder& files, const LoadModelOptions& options) {
  std::vector<std::string> missing, wrong, extra;
  std::map<std::string, bool> wanted;
  for (const Target& target : targets) {
    wanted[target.name] = true;
    const auto found = files.tensors().find(target.name);
    const std::string shape = ShapeText(target.tensor.sizes());
    if (found == files.tensors().end()) {
      missing.push_back(absl::StrCat(target.name, " ", shape));
    } else if (ShapeText(found->second->shape) != shape) {
      wrong.push_back(absl::StrCat(target.name, " is ", ShapeText(found->second->shape),
                                   " in the files and ", shape, " in the model"));
    }
  }
  for (const auto& [name, entry] : files.tensors()) {
    if (wanted.count(entry->name) == 0 && !(options.ignore && options.ignore(entry->name))) {
      extra.push_back(absl::StrCat(name, " ", ShapeText(entry->shape)));
    }
  }
  std::vector<std::string> problems;
  if (!missing.empty()) {
    problems.push_back(Listed("the files lack", missing));
  }
  if (!wrong.empty()) {
    problems.push_back(Listed("another shape of", wrong));
  }
  if (!extra.empty()) {
    problems.push_back(Listed("the model lacks", extra));
  }
  return problems.empty()
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   files.directory(), " does not fit the model: ", absl::StrJoin(problems, "; "),
                   "; give the model the shape of the files' own config.json, or take the folder "
                   "that belongs to it"));
}

// All that is to be read, once it is known that it can be.
absl::StatusOr<std::vector<Target>> FittingTargets(const torch::nn::Module& module,
                                                   const ModelFiles& files,
                                                   const checkpoint::HuggingFaceFolder& folder,
                                                   const LoadModelOptions& options) {
  std::vector<Target> targets = TargetsOf(module, options);
  DT_RETURN_IF_ERROR(CheckFit(targets, folder, options));
  for (const Target& target : targets) {
    DT_RETURN_IF_ERROR(files.Describe(target.name).status());
  }
  return targets;
}

}  // namespace

struct ModelFiles::State {
  checkpoint::HuggingFaceFolder folder;
};

ModelFiles::ModelFiles(std::unique_ptr<State> state) : state_(std::move(state)) {}
ModelFiles::~ModelFiles() = default;

absl::StatusOr<Json> ReadModelConfig(const std::string& path) {
  return checkpoint::ReadModelJson(path);
}

absl::StatusOr<std::unique_ptr<ModelFiles>> ModelFiles::Open(const std::string& directory) {
  DT_ASSIGN_OR_RETURN(auto folder, checkpoint::HuggingFaceFolder::Open(directory));
  return std::unique_ptr<ModelFiles>(
      new ModelFiles(std::make_unique<State>(State{std::move(folder)})));
}

const std::string& ModelFiles::directory() const { return state_->folder.directory(); }

std::vector<std::string> ModelFiles::names() const {
  std::vector<std::string> all;
  for (const auto& [name, entry] : state_->folder.tensors()) {
    all.emplace_back(name);
  }
  return all;
}

bool ModelFiles::Contains(const std::string& name) const {
  return state_->folder.tensors().count(name) > 0;
}

absl::StatusOr<ModelTensor> ModelFiles::Describe(const std::string& name) const {
  const auto found = state_->folder.tensors().find(name);
  if (found == state_->folder.tensors().end()) {
    return absl::NotFoundError(absl::StrCat(directory(), " holds no tensor ", name));
  }
  const auto type = ScalarTypeOf(found->second->dtype);
  if (!type.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(directory(), ": tensor ", name, " is of type ", found->second->dtype,
                     ", which is not supported; allowed: F32, BF16, F16, F64, I64, I32, U8, BOOL"));
  }
  const auto& shape = found->second->shape;
  return ModelTensor{name, *type, std::vector<int64_t>(shape.begin(), shape.end())};
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the public interface takes tensors so.
absl::Status ModelFiles::Read(const std::string& name, at::Tensor into) const {
  DT_ASSIGN_OR_RETURN(const ModelTensor from, Describe(name));
  if (into.sizes() != at::IntArrayRef(from.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(directory(), ": tensor ", name, " is ",
                                                   ShapeText(from.shape), ", not ",
                                                   ShapeText(into.sizes())));
  }
  if (from.dtype != into.scalar_type() &&
      !(c10::isFloatingType(from.dtype) && into.is_floating_point())) {
    return absl::InvalidArgumentError(absl::StrCat(directory(), ": tensor ", name, " is of type ",
                                                   c10::toString(from.dtype), ", the model's of ",
                                                   c10::toString(into.scalar_type())));
  }
  const at::NoGradGuard no_grad;
  if (from.dtype == into.scalar_type() && into.is_cpu()) {
    return state_->folder.Read(name, 0, BytesOf(into));
  }
  const at::Tensor flat = into.detach().view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, flat.numel() - begin);
    const at::Tensor block = at::empty({count}, at::TensorOptions(from.dtype));
    const auto offset = static_cast<uint64_t>(begin) * block.element_size();
    DT_RETURN_IF_ERROR(state_->folder.Read(name, offset, BytesOf(block)));
    flat.narrow(0, begin, count).copy_(block);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ModelFiles::HaveEqualValues(const std::string& a, const std::string& b) const {
  DT_ASSIGN_OR_RETURN(const ModelTensor first, Describe(a));
  DT_ASSIGN_OR_RETURN(const ModelTensor second, Describe(b));
  if (first.shape != second.shape) {
    return false;
  }
  const at::NoGradGuard no_grad;
  const int64_t elements = c10::multiply_integers(first.shape);
  for (int64_t begin = 0; begin < elements; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, elements - begin);
    const auto block = [&](const ModelTensor& tensor) -> absl::StatusOr<at::Tensor> {
      at::Tensor values = at::empty({count}, at::TensorOptions(tensor.dtype));
      const auto offset = static_cast<uint64_t>(begin) * values.element_size();
      DT_RETURN_IF_ERROR(state_->folder.Read(tensor.name, offset, BytesOf(values)));
      return values;
    };
    DT_ASSIGN_OR_RETURN(at::Tensor left, block(first));
    DT_ASSIGN_OR_RETURN(at::Tensor right, block(second));
    if (first.dtype != second.dtype) {
      left = left.to(at::kDouble);
      right = right.to(at::kDouble);
    }
    if (!at::equal(left, right)) {
      return false;
    }
  }
  return true;
}

absl::Status LoadModel(const Job& job, torch::nn::Module& module, const ModelFiles& files,
                       const LoadModelOptions& options) {
  if (job.rank() == 0) {
    return LoadModel(module, files, options);
  }
  return FittingTargets(module, files, files.state_->folder, options).status();
}

absl::Status LoadModel(torch::nn::Module& module, const ModelFiles& files,
                       const LoadModelOptions& options) {
  DT_ASSIGN_OR_RETURN(const std::vector<Target> targets,
                      FittingTargets(module, files, files.state_->folder, options));
  for (const Target& target : targets) {
    DT_RETURN_IF_ERROR(files.Read(target.name, target.tensor));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
