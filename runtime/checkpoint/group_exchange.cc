#include "runtime/checkpoint/group_exchange.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/status.h"
#include "base/threads/bounded_queue.h"
#include "base/threads/work_count.h"
#include "base/threads/worker.h"

namespace dtrain {
namespace {

comm::Buffer Bytes(void* data, size_t bytes) { return {data, bytes, DType::kUInt8, {}}; }

comm::CollectiveOptions CallOptions(const char* name, Deadline deadline) {
  return {.name = name, .caller_waits = true, .deadline = deadline};
}

// How often a rank tells the others that it still works, at most.
constexpr absl::Duration kTellApart = absl::Seconds(1);

// Exchanges with the other ranks, by a thread of its own, who still works. A rank that works but
// has done no further piece says nothing, so that the others' calls run out of time and name it.
class WorkOfAll {
 public:
  // `heartbeat`: as in GroupExchange.
  WorkOfAll(comm::Group& group, Heartbeat* heartbeat, const WorkCount& mine, absl::Duration timeout)
      : group_(group), heartbeat_(heartbeat), mine_(mine), timeout_(timeout) {
    thread_.Submit([this] {
      absl::Status status = absl::InternalError("the thread that waits met an exception");
      const absl::Cleanup end = [&] { ended_.TryPush(std::move(status)); };
      status = Run();
    });
  }
  WorkOfAll(const WorkOfAll&) = delete;
  WorkOfAll& operator=(const WorkOfAll&) = delete;
  ~WorkOfAll() { EndMine(); }

  // This rank has done its work; returns when all have.
  absl::Status Await() {
    EndMine();
    return *ended_.Pop();
  }

 private:
  void EndMine() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    changed_.notify_all();
  }

  absl::Status Run() {
    const absl::Duration apart = std::min(kTellApart, timeout_ / 4);
    uint64_t told = 0;
    while (true) {
      bool is_done = false;
      {
        std::unique_lock lock(mutex_);
        is_done =
            changed_.wait_for(lock, absl::ToChronoNanoseconds(apart), [this] { return is_done_; });
      }
      if (is_done || mine_.GetsOn(told)) {
        DT_ASSIGN_OR_RETURN(const bool any, AnyWorks(!is_done));
        if (!any) {
          return absl::OkStatus();
        }
        if (heartbeat_ != nullptr) {
          heartbeat_->GetsOn();
        }
      }
    }
  }

  // Collective: whether a rank still works.
  absl::StatusOr<bool> AnyWorks(bool mine) {
    uint8_t works = mine ? 1 : 0;
    std::vector<uint8_t> all(static_cast<size_t>(group_.size()));
    DT_ASSIGN_OR_RETURN(
        comm::Work work,
        group_.AllGather(Bytes(&works, 1), Bytes(all.data(), all.size()),
                         CallOptions("checkpoint work", Deadline::After(timeout_))));
    DT_RETURN_IF_ERROR(work.Wait());
    return std::find(all.begin(), all.end(), uint8_t{1}) != all.end();
  }

  comm::Group& group_;
  Heartbeat* const heartbeat_;
  const WorkCount& mine_;
  const absl::Duration timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false;
  BoundedQueue<absl::Status> ended_{1};
  Worker thread_{{.name = "dtrain-together", .queue_capacity = 1}};  // Ends first.
};

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
  if (heartbeat_ != nullptr) {
    heartbeat_->GetsOn();
  }
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

absl::Status GroupExchange::Together(absl::FunctionRef<absl::Status()> work,
                                     absl::Duration timeout) {
  WorkCount mine;
  WorkOfAll all(group_, heartbeat_, mine, timeout);
  const absl::Status status = [&] {
    const WorkCount::Scope counts(&mine);
    return work();
  }();
  const absl::Status others = all.Await();
  return status.ok() ? others : status;
}

}  // namespace dtrain
