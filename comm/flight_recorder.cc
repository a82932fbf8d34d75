#include "comm/flight_recorder.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtrain::comm {
namespace {

constexpr char kVersion[] = "2.10";  // Version of PyTorch's format.

// The recorders of this process. Never destroyed: a rank may end while others record.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<FlightRecorder>> recorders;
  std::atomic<uint64_t> next_record{0};
  std::atomic<void (*)()> tell{nullptr};
};

Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

const char* TorchName(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kReduceScatter:
      return "_reduce_scatter_base";
    case CallKind::kAllGather:
      return "_all_gather_base";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kSend:
      return "send";
    case CallKind::kReceive:
      return "recv";
    case CallKind::kBarrier:
    case CallKind::kRegister:
    case CallKind::kNone:
      break;
  }
  return "all_reduce_barrier";
}

const char* TorchDType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "Float";
    case DType::kBFloat16:
      return "BFloat16";
    case DType::kFloat16:
      return "Half";
    case DType::kFloat64:
      return "Double";
    case DType::kInt32:
      return "Int";
    case DType::kInt64:
      return "Long";
    case DType::kUInt8:
      return "Byte";
    case DType::kBool:
      return "Bool";
  }
  return "Byte";
}

// The name in the form that PyTorch's analyser splits: "nccl:send 0->1", "nccl:recv 1<-0".
std::string ProfilingName(const FlightCall& call, int rank) {
  const CallKind kind = call.header.kind;
  std::string name = absl::StrCat("nccl:", TorchName(kind));
  if (kind == CallKind::kSend || kind == CallKind::kReceive) {
    absl::StrAppend(&name, " ", rank, kind == CallKind::kSend ? "->" : "<-", call.peer);
  }
  return name;
}

Json Sizes(uint64_t bytes, DType dtype) {
  return Json::array({Json::array({bytes / DTypeBytes(dtype)})});
}

void Append(Json& all, const FlightRecorder& recorder) {
  for (Json& entry : recorder.Entries()) {
    all["entries"].push_back(std::move(entry));
  }
  all["pg_config"].update(recorder.GroupConfig());
  all["pg_status"].update(recorder.GroupStatus());
  const FlightGroup& group = recorder.group();
  all["dtrain"]["groups"].push_back({{"name", group.name},
                                     {"rank", group.rank},
                                     {"size", group.size},
                                     {"epoch", group.epoch},
                                     {"transport", group.transport}});
  if (const std::string broken = recorder.broken(); !broken.empty()) {
    all["dtrain"]["groups"].back()["broken"] = broken;
  }
}

std::vector<std::shared_ptr<FlightRecorder>> Recorders() {
  std::vector<std::shared_ptr<FlightRecorder>> recorders;
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  for (const auto& weak : registry.recorders) {
    if (auto recorder = weak.lock()) {
      recorders.push_back(std::move(recorder));
    }
  }
  return recorders;
}

void TellFailure() {
  if (void (*const tell)() = TheRegistry().tell.load(); tell != nullptr) {
    tell();
  }
}

Json Empty() {
  return {{"version", kVersion},
          {"pg_config", Json::object()},
          {"pg_status", Json::object()},
          {"entries", Json::array()},
          {"dtrain", {{"version", 1}, {"groups", Json::array()}}}};
}

}  // namespace

std::shared_ptr<FlightRecorder> FlightRecorder::Create(FlightGroup group, Clock& clock) {
  std::shared_ptr<FlightRecorder> recorder(new FlightRecorder(std::move(group), clock));
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  auto& all = registry.recorders;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& old) { return old.expired(); }),
            all.end());
  all.push_back(recorder);
  return recorder;
}

FlightRecorder::FlightRecorder(FlightGroup group, Clock& clock)
    : group_(std::move(group)),
      clock_(clock),
      wall_offset_nanos_(absl::ToUnixNanos(clock.WallTime()) - clock.MonotonicNanos()) {}

uint64_t FlightRecorder::Queued(const FlightCall& call) {
  const std::lock_guard lock(mutex_);
  const uint64_t ticket = next_++;
  Entry& entry = entries_[ticket % kCapacity];
  entry = Entry();
  entry.ticket = ticket;
  entry.record_id = TheRegistry().next_record.fetch_add(1, std::memory_order_relaxed);
  entry.call = call;
  entry.message = call.peer >= 0 ? ++messages_ : 0;
  entry.queued_nanos = clock_.MonotonicNanos();
  last_queued_ = std::max(last_queued_, call.header.sequence);
  return ticket;
}

FlightRecorder::Entry* FlightRecorder::Find(uint64_t ticket) {
  Entry& entry = entries_[ticket % kCapacity];
  return entry.ticket == ticket ? &entry : nullptr;  // Null: overwritten since.
}

void FlightRecorder::Started(uint64_t ticket, absl::Duration timeout) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = Find(ticket)) {
    entry->started_nanos = clock_.MonotonicNanos();
    entry->timeout_ms = absl::ToInt64Milliseconds(timeout);
    if (entry->call.header.sequence > last_started_) {
      last_started_ = entry->call.header.sequence;
      last_header_ = entry->call.header;
    }
  }
}

void FlightRecorder::Ended(uint64_t ticket, const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (Entry* entry = Find(ticket)) {
      entry->ended_nanos = clock_.MonotonicNanos();
      if (status.ok()) {
        last_completed_ = std::max(last_completed_, entry->call.header.sequence);
      } else {
        entry->error = status.ToString();
      }
    }
  }
  if (!status.ok()) {
    TellFailure();
  }
}

void FlightRecorder::SetBroken(const absl::Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    broken_ = reason.ToString();
  }
  TellFailure();
}

std::string FlightRecorder::broken() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

Json FlightRecorder::WallNanos(int64_t nanos) const {
  return nanos == 0 ? Json(nullptr) : Json(nanos + wall_offset_nanos_);
}

Json FlightRecorder::ToJson(const Entry& entry) const {
  const CallHeader& header = entry.call.header;
  const bool completed = entry.ended_nanos != 0 && entry.error.empty();
  const char* const state = completed                  ? "completed"
                            : entry.started_nanos != 0 ? "started"
                                                       : "scheduled";
  const Json dtypes = Json::array({TorchDType(header.dtype)});
  return {
      {"record_id", entry.record_id},
      {"pg_id", 0},
      {"process_group", {group_.name, "dtrain"}},
      {"collective_seq_id", header.sequence},
      {"p2p_seq_id", entry.message},
      {"op_id", entry.ticket},
      {"profiling_name", ProfilingName(entry.call, group_.rank)},
      {"input_sizes", Sizes(entry.call.input_bytes, header.dtype)},
      {"input_dtypes", dtypes},
      {"output_sizes", Sizes(entry.call.output_bytes, header.dtype)},
      {"output_dtypes", dtypes},
      {"time_created_ns", WallNanos(entry.queued_nanos)},
      {"time_discovered_started_ns", WallNanos(entry.started_nanos)},
      {"time_discovered_completed_ns", completed ? WallNanos(entry.ended_nanos) : Json(nullptr)},
      {"state", state},
      {"timeout_ms", entry.timeout_ms},
      {"is_p2p", entry.call.peer >= 0},
      {"retired", entry.ended_nanos != 0},
      {"frames", Json::array()},
      {"dtrain",
       {{"call", Describe(header)},
        {"kind", std::string(CallKindName(header.kind))},
        {"name", std::string(header.name)},
        {"bytes", header.bytes},
        {"wire", std::string(WireName(header.wire))},
        {"step", header.step >= 0 ? Json(header.step) : Json(nullptr)},
        {"time_failed_ns", completed ? Json(nullptr) : WallNanos(entry.ended_nanos)},
        {"error", entry.error.empty() ? Json(nullptr) : Json(entry.error)}}}};
}

Json FlightRecorder::Entries() const {
  const std::lock_guard lock(mutex_);
  Json entries = Json::array();
  for (uint64_t ticket = next_ > kCapacity ? next_ - kCapacity : 1; ticket < next_; ++ticket) {
    entries.push_back(ToJson(entries_[ticket % kCapacity]));
  }
  return entries;
}

Json FlightRecorder::GroupConfig() const {
  std::vector<int> ranks = group_.world_ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(group_.size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return {{group_.name,
           {{"name", group_.name},
            {"desc", "dtrain"},
            {"ranks", absl::StrCat("[", absl::StrJoin(ranks, ", "), "]")}}}};
}

Json FlightRecorder::GroupStatus() const {
  const std::lock_guard lock(mutex_);
  return {{group_.name,
           {{"last_enqueued_collective", last_queued_},
            {"last_started_collective", last_started_},
            {"last_completed_collective", last_completed_}}}};
}

// Groups of one name may have other members, as those of each host.
GroupProgress FlightRecorder::Progress() const {
  const std::lock_guard lock(mutex_);
  GroupProgress progress{
      .group = group_.world_ranks.empty()
                   ? group_.name
                   : absl::StrFormat("%s (%d ranks from rank %d)", group_.name,
                                     group_.world_ranks.size(), group_.world_ranks.front()),
      .entered = last_started_,
      .left = last_completed_};
  CallHeader header = last_header_;
  header.step = -1;  // Ranks that differ in it still run the same call.
  progress.call = Describe(header);
  return progress;
}

Json FlightRecords(const FlightRecorder& recorder) {
  Json all = Empty();
  Append(all, recorder);
  return all;
}

Json FlightRecords() {
  const std::vector<std::shared_ptr<FlightRecorder>> recorders = Recorders();
  Json all = Empty();
  for (const auto& recorder : recorders) {
    Append(all, *recorder);
  }
  Json& entries = all["entries"];
  std::stable_sort(entries.begin(), entries.end(), [](const Json& a, const Json& b) {
    return a["record_id"].get<uint64_t>() < b["record_id"].get<uint64_t>();
  });
  return all;
}

std::vector<GroupProgress> ProgressOfGroups() {
  std::vector<GroupProgress> all;
  for (const auto& recorder : Recorders()) {
    GroupProgress progress = recorder->Progress();
    if (progress.entered > 0 && !recorder->is_beside()) {
      all.push_back(std::move(progress));
    }
  }
  std::stable_partition(all.begin(), all.end(),
                        [](const GroupProgress& progress) { return progress.inside(); });
  return all;
}

void OnFlightFailure(void (*tell)()) { TheRegistry().tell.store(tell); }

}  // namespace dtrain::comm
