#include "runtime/model/registered_buffers.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "c10/util/StringUtil.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

std::string Describe(c10::ScalarType type, c10::IntArrayRef shape, c10::Device device) {
  return c10::str(c10::toString(type), " ", shape, " on ", device.str());
}

absl::Status Changed(const std::string& name, const std::string& how) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "buffer %s %s Engine::Create took the module, so that checkpoints would not fit the program; "
      "change the module before, and afterwards write into the buffer (copy_)",
      name, how));
}

}  // namespace

RegisteredBuffers::RegisteredBuffers(const torch::nn::Module& module) {
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    const at::Tensor& buffer = item.value();
    if (buffer.defined()) {
      all_.push_back({item.key(), buffer.unsafeGetTensorImpl(), buffer.scalar_type(),
                      buffer.device(), buffer.sizes().vec()});
    }
  }
}

bool RegisteredBuffers::Holds(const torch::nn::Module& module, size_t& place) const {
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) {
    if (!buffer.defined()) {
      continue;
    }
    if (place == all_.size() || buffer.unsafeGetTensorImpl() != all_[place].tensor ||
        buffer.scalar_type() != all_[place].type || buffer.device() != all_[place].device ||
        buffer.sizes() != c10::IntArrayRef(all_[place].shape)) {
      return false;
    }
    ++place;
  }
  const auto children = module.children();
  return std::all_of(children.begin(), children.end(),
                     [&](const auto& child) { return Holds(*child, place); });
}

absl::Status RegisteredBuffers::CheckUnchanged(const torch::nn::Module& module) const {
  size_t place = 0;
  return Holds(module, place) && place == all_.size() ? absl::OkStatus() : Difference(module);
}

absl::Status RegisteredBuffers::Difference(const torch::nn::Module& module) const {
  const auto now = module.named_buffers(/*recurse=*/true);
  for (const Registered& was : all_) {
    const at::Tensor* const is = now.find(was.name);
    if (is == nullptr || !is->defined()) {
      return Changed(was.name, "is no longer in the module as when");
    }
    if (is->unsafeGetTensorImpl() != was.tensor) {
      return Changed(was.name, "is another tensor than when");
    }
    const std::string then = Describe(was.type, was.shape, was.device);
    const std::string today = Describe(is->scalar_type(), is->sizes(), is->device());
    if (then != today) {
      return Changed(was.name, absl::StrFormat("is %s and was %s when", today, then));
    }
  }
  for (const auto& item : now) {
    if (item.value().defined() &&
        std::none_of(all_.begin(), all_.end(),
                     [&](const Registered& was) { return was.name == item.key(); })) {
      return Changed(item.key(), "was not in the module when");
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain
