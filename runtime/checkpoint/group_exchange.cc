#include "runtime/checkpoint/group_exchange.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace dtrain {
namespace {

comm::Buffer Bytes(void* data, size_t bytes) { return {data, bytes, DType::kUInt8, {}}; }

comm::CollectiveOptions CallOptions(const char* name, Deadline deadline) {
  return {.name = name, .caller_waits = true, .deadline = deadline};
}

}  // namespace

// Each call ends by its own deadline, so the waits need none.
absl::StatusOr<std::vector<std::string>> GroupExchange::Gather(absl::string_view mine,
                                                               Deadline deadline) {
  const auto world = static_cast<size_t>(group_.size());
  uint64_t length = mine.size();
  std::vector<uint64_t> lengths(world);
  DT_ASSIGN_OR_RETURN(comm::Work work,
                      group_.AllGather(Bytes(&length, sizeof(length)),
                                       Bytes(lengths.data(), world * sizeof(uint64_t)),
                                       CallOptions("checkpoint report sizes", deadline)));
  DT_RETURN_IF_ERROR(work.Wait());
  const size_t widest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded(mine.data(), mine.size());
  padded.resize(widest);
  std::string all(world * widest, '\0');
  DT_ASSIGN_OR_RETURN(work,
                      group_.AllGather(Bytes(padded.data(), widest), Bytes(all.data(), all.size()),
                                       CallOptions("checkpoint reports", deadline)));
  DT_RETURN_IF_ERROR(work.Wait());
  std::vector<std::string> texts;
  for (size_t r = 0; r < world && rank() == 0; ++r) {
    texts.push_back(all.substr(r * widest, lengths[r]));
  }
  return texts;
}

absl::StatusOr<std::string> GroupExchange::Broadcast(absl::string_view text, Deadline deadline) {
  uint64_t length = text.size();
  DT_ASSIGN_OR_RETURN(comm::Work work,
                      group_.Broadcast(Bytes(&length, sizeof(length)), 0,
                                       CallOptions("checkpoint message size", deadline)));
  DT_RETURN_IF_ERROR(work.Wait());
  std::string message(text.data(), rank() == 0 ? text.size() : 0);
  message.resize(length);
  DT_ASSIGN_OR_RETURN(work, group_.Broadcast(Bytes(message.data(), message.size()), 0,
                                             CallOptions("checkpoint message", deadline)));
  DT_RETURN_IF_ERROR(work.Wait());
  return message;
}

}  // namespace dtrain
