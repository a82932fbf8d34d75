#include "runtime/checkpoint/journal/journal_record.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/format/json_fields.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/model/cpu_rng.h"

namespace dtrain {
namespace {

constexpr char kRngBlob[] = "rng.cpu";
constexpr char kDeviceRngBlob[] = "rng.cuda";
constexpr char kBufferBlob[] = "buffer.";

int64_t Bits(double value) { return std::bit_cast<int64_t>(value); }

absl::StatusOr<double> FromBits(checkpoint::JsonFields& fields, absl::string_view key) {
  DT_ASSIGN_OR_RETURN(const int64_t bits, fields.Integer(key, std::numeric_limits<int64_t>::min(),
                                                         std::numeric_limits<int64_t>::max()));
  return std::bit_cast<double>(bits);
}

checkpoint::JournalBlob BlobOf(std::string name, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().cpu().contiguous();
  const absl::Span<const std::byte> bytes = BytesOf(whole);
  return {std::move(name), std::vector<std::byte>(bytes.begin(), bytes.end())};
}

uint32_t ChecksumOf(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().cpu().contiguous();
  return Crc32c(whole.const_data_ptr(), whole.nbytes());
}

absl::Status Put(const checkpoint::JournalBlob& blob, const at::Tensor& tensor) {
  if (blob.bytes.size() != tensor.nbytes()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the journal holds %d bytes of \"%s\", which has %d now", blob.bytes.size(),
                        blob.name, tensor.nbytes()));
  }
  const at::Tensor whole = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  std::memcpy(whole.mutable_data_ptr(), blob.bytes.data(), blob.bytes.size());
  tensor.detach().copy_(whole);
  return absl::OkStatus();
}

const checkpoint::JournalBlob* Find(const checkpoint::AfterStep& after, const std::string& name) {
  const auto found =
      std::find_if(after.blobs.begin(), after.blobs.end(),
                   [&](const checkpoint::JournalBlob& blob) { return blob.name == name; });
  return found == after.blobs.end() ? nullptr : &*found;
}

}  // namespace

Json StepEndJson(const StepEnd& end) {
  Json unused = Json::array();
  for (size_t i = 0; i < end.unused.size(); ++i) {
    if (end.unused[i] != 0) {
      unused.push_back(i);
    }
  }
  return {{"count", end.count},
          {"samples", end.samples},
          {"loss_sum", Bits(end.loss_sum)},
          {"sum_of_squares", Bits(end.sum_of_squares)},
          {"finite", end.finite ? 1 : 0},
          {"loss_unit", Bits(end.loss_unit)},
          {"entries", end.unused.size()},
          {"unused", std::move(unused)}};
}

absl::StatusOr<StepEnd> ParseStepEnd(int64_t step, const Json& json) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kEntriesMax = 1 << 24;
  checkpoint::JsonFields fields(json, "the end of a journalled step");
  StepEnd end{.step = step};
  DT_ASSIGN_OR_RETURN(end.count, fields.Integer("count", 0, kMax));
  DT_ASSIGN_OR_RETURN(end.samples, fields.Integer("samples", 0, kMax));
  DT_ASSIGN_OR_RETURN(end.loss_sum, FromBits(fields, "loss_sum"));
  DT_ASSIGN_OR_RETURN(end.sum_of_squares, FromBits(fields, "sum_of_squares"));
  DT_ASSIGN_OR_RETURN(const int64_t finite, fields.Integer("finite", 0, 1));
  end.finite = finite != 0;
  DT_ASSIGN_OR_RETURN(end.loss_unit, FromBits(fields, "loss_unit"));
  DT_ASSIGN_OR_RETURN(const int64_t entries, fields.Integer("entries", 0, kEntriesMax));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> unused, fields.Integers("unused", 0));
  DT_RETURN_IF_ERROR(fields.Finish());
  end.unused.resize(static_cast<size_t>(entries));
  for (const int64_t entry : unused) {
    if (entry >= entries) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the end of journalled step %d names entry %d of %d", step, entry, entries));
    }
    end.unused[static_cast<size_t>(entry)] = 1;
  }
  return end;
}

ChangedBuffers::ChangedBuffers(const EngineState& state, const std::vector<std::string>& journalled)
    : local_(state.local_buffers) {
  for (const NamedTensor& buffer : state.flat->module_buffers()) {
    checksums_.push_back(ChecksumOf(buffer.tensor));
    changed_.push_back(std::find(journalled.begin(), journalled.end(), buffer.name) !=
                       journalled.end());
  }
}

void ChangedBuffers::Add(absl::Span<const NamedTensor> now, const RankPlace& place,
                         checkpoint::AfterStep& after) {
  for (size_t i = 0; i < now.size(); ++i) {
    changed_[i] = changed_[i] || ChecksumOf(now[i].tensor) != checksums_[i];
    if (changed_[i] && (local_ || place.rank == 0)) {
      after.blobs.push_back(BlobOf(kBufferBlob + now[i].name, now[i].tensor));
    }
  }
}

void AddGenerators(checkpoint::AfterStep& after) {
  after.blobs.push_back(BlobOf(kRngBlob, CpuRngState()));
  if (const at::Tensor of_device = DeviceRngState(); of_device.defined()) {
    after.blobs.push_back(BlobOf(kDeviceRngBlob, of_device));
  }
}

void AddTracked(absl::Span<const NamedTensor> tracked, checkpoint::AfterStep& after) {
  for (const NamedTensor& item : tracked) {
    after.blobs.push_back(BlobOf(item.name, item.tensor));
  }
}

absl::StatusOr<std::vector<std::string>> RestoreAfter(const checkpoint::AfterStep& own,
                                                      const checkpoint::AfterStep& of_rank0,
                                                      absl::Span<const NamedTensor> tracked,
                                                      EngineState& state) {
  const at::NoGradGuard no_grad;
  if (const checkpoint::JournalBlob* const rng = Find(own, kRngBlob); rng != nullptr) {
    const at::Tensor now = CpuRngState();
    DT_RETURN_IF_ERROR(Put(*rng, now));
    SetCpuRngState(now);
  }
  const checkpoint::JournalBlob* const device_rng = Find(own, kDeviceRngBlob);
  if (const at::Tensor now = DeviceRngState(); now.defined() && device_rng != nullptr) {
    DT_RETURN_IF_ERROR(Put(*device_rng, now));
    SetDeviceRngState(now);
  }
  for (const NamedTensor& item : tracked) {
    const checkpoint::JournalBlob* const blob = Find(of_rank0, item.name);
    if (blob == nullptr) {
      DT_LOG(Warning) << "the journal holds no tensor \"" << item.name
                      << "\": it is as in the checkpoint";
      continue;
    }
    DT_RETURN_IF_ERROR(Put(*blob, item.tensor));
  }
  std::vector<std::string> restored;
  for (const NamedTensor& buffer : state.flat->module_buffers()) {
    const std::string name = kBufferBlob + buffer.name;
    const checkpoint::JournalBlob* blob = state.local_buffers ? Find(own, name) : nullptr;
    blob = blob != nullptr ? blob : Find(of_rank0, name);
    if (blob != nullptr) {
      DT_RETURN_IF_ERROR(Put(*blob, buffer.tensor));
      restored.push_back(buffer.name);
    }
  }
  return restored;
}

}  // namespace dtrain
