#include "runtime/model/model_sync.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "runtime/model/dtypes.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain {
namespace {

// The name comes last, since it may hold spaces; ParamLayout::ToText does the same.
void AppendLine(std::string& text, absl::string_view kind, const at::Tensor& tensor,
                absl::string_view name) {
  const absl::StatusOr<DType> dtype = DTypeOf(tensor.scalar_type());
  absl::StrAppend(&text, kind, dtype.ok() ? DTypeName(*dtype) : c10::toString(tensor.scalar_type()),
                  " ", c10::str(tensor.sizes()), " ", name, "\n");
}

// A line each: parameters that train, in the order of registration, frozen ones, buffers. Their own
// types, in which rank 0's values travel, and not those that they are to have.
std::string Describe(const FlatParameters& flat, bool shares_out_frozen) {
  std::string text = "model\n";
  const auto& entries = flat.layout().entries();
  for (size_t i = entries.size(); i-- > 0;) {
    AppendLine(text, "", flat.parameters()[i], entries[i].name);
  }
  for (const NamedTensor& item : flat.frozen()) {
    const bool whole = shares_out_frozen && !flat.CanBeSharedOut(item.tensor);
    AppendLine(text, whole ? "frozen, whole on every rank: " : "frozen ", item.tensor, item.name);
  }
  for (const NamedTensor& item : flat.module_buffers()) {
    AppendLine(text, "buffer ", item.tensor, item.name);
  }
  return text;
}

uint64_t HashOf(const std::string& text) {
  uint64_t hash = MixBits(text.size());
  for (const char c : text) {
    hash = MixBits(hash ^ static_cast<uint8_t>(c));
  }
  return hash;
}

absl::Status BroadcastBytes(comm::Group& group, void* data, size_t bytes, const std::string& name) {
  const comm::Buffer buffer{data, bytes, DType::kUInt8, {}};
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group.Broadcast(buffer, 0, {.name = name, .caller_waits = true}));
  return work.Wait();
}

absl::Status BroadcastTensor(comm::Group& group, const NamedTensor& item) {
  const at::NoGradGuard no_grad;
  at::Tensor contiguous =
      item.tensor.to(at::kCPU).contiguous();  // The group's memory is the host's.
  DT_RETURN_IF_ERROR(
      BroadcastBytes(group, contiguous.mutable_data_ptr(), contiguous.nbytes(), item.name));
  if (!contiguous.is_alias_of(item.tensor)) {
    item.tensor.copy_(contiguous);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSameModel(comm::Group& group, const FlatParameters& flat,
                            bool shares_out_frozen) {
  const std::string mine = Describe(flat, shares_out_frozen);
  struct Facts {
    uint64_t hash;
    uint64_t bytes;
  };
  Facts facts{HashOf(mine), mine.size()};
  std::vector<Facts> all(static_cast<size_t>(group.size()));
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group.AllGather({&facts, sizeof(facts), DType::kUInt8, {}},
                                      {all.data(), all.size() * sizeof(Facts), DType::kUInt8, {}},
                                      {.name = "model layout", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  const auto differing = std::find_if(all.begin(), all.end(),
                                      [&](const Facts& f) { return f.hash != all.front().hash; });
  if (differing == all.end()) {
    return absl::OkStatus();
  }
  // Every rank takes part, so that each can name what differs.
  const auto other = static_cast<int>(differing - all.begin());
  std::string first(all.front().bytes, '\0');
  std::string second(differing->bytes, '\0');
  first = group.rank() == 0 ? mine : first;
  second = group.rank() == other ? mine : second;
  DT_RETURN_IF_ERROR(BroadcastBytes(group, first.data(), first.size(), "rank 0's layout"));
  const comm::Buffer buffer{second.data(), second.size(), DType::kUInt8, {}};
  DT_ASSIGN_OR_RETURN(
      const comm::Work second_work,
      group.Broadcast(buffer, other, {.name = "differing layout", .caller_waits = true}));
  DT_RETURN_IF_ERROR(second_work.Wait());
  const auto difference =
      plan::ParamLayout::FirstDifference(first, "rank 0", second, absl::StrCat("rank ", other));
  return absl::InvalidArgumentError(
      absl::StrCat("the model differs between ranks: ",
                   difference.value_or("frozen parameters or buffers differ"),
                   "; build the same module on every rank"));
}

absl::StatusOr<std::optional<int>> FirstRankThatDiffers(comm::Group& group, uint64_t mine,
                                                        const char* name) {
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group.AllGather({&mine, sizeof(mine), DType::kUInt8, {}},
                                      {all.data(), all.size() * sizeof(mine), DType::kUInt8, {}},
                                      {.name = name, .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  const auto other =
      std::find_if(all.begin(), all.end(), [&](uint64_t value) { return value != all[0]; });
  return other == all.end() ? std::nullopt
                            : std::optional<int>(static_cast<int>(other - all.begin()));
}

absl::Status CheckSameUnits(comm::Group& group, const std::vector<plan::FlatRange>& units) {
  plan::StableHash hash;
  for (const plan::FlatRange& unit : units) {
    hash.Add(static_cast<uint64_t>(unit.begin)).Add(static_cast<uint64_t>(unit.end));
  }
  DT_ASSIGN_OR_RETURN(const std::optional<int> other,
                      FirstRankThatDiffers(group, hash.value(), "units"));
  if (!other.has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "EngineOptions::units of rank %d are not those of rank 0; name the same on every rank",
      *other));
}

absl::Status BroadcastModel(comm::Group& group, const FlatParameters& flat,
                            const FlatParameters* frozen) {
  for (const FlatParameters* const part : {&flat, frozen}) {
    for (size_t i = 0; part != nullptr && i < part->parameters().size(); ++i) {
      DT_RETURN_IF_ERROR(
          BroadcastTensor(group, {part->layout().entries()[i].name, part->parameters()[i]}));
    }
  }
  for (const auto* list : {&flat.frozen(), &flat.module_buffers()}) {
    for (const NamedTensor& item : *list) {
      DT_RETURN_IF_ERROR(BroadcastTensor(group, item));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain
