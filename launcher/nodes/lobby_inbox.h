// The orders of the coordinator as one agent sees them. Pure, not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/nodes/lobby_messages.h"

namespace dtrain::launcher {

class LobbyInbox {
 public:
  // `memory` is what the node knows of an attempt under a former coordinator, and `job_term` of the
  // job's first one.
  LobbyInbox(std::string name, std::optional<AttemptMemory> memory, int64_t job_term = 0)
      : name_(std::move(name)),
        memory_(std::move(memory)),
        job_term_(job_term),
        begun_term_(memory_.has_value() ? memory_->term : 0) {}

  void Take(LobbyOrder order);
  // The next order but kStop and kAnswer. An order to start, wait or leave that is for others only
  // is left out.
  std::optional<LobbyOrder> Next();
  bool has_next() const { return !orders_.empty(); }
  // The first order since the last call that ends `attempt`, whose start Next has given: kStop, or
  // one that shows that the coordinator, or its successor, has gone on without this node.
  std::optional<LobbyOrder> TakeStop(int attempt);
  // The answer to kDrain.
  std::optional<LobbyOrder> TakeAnswer();
  bool has_answer() const { return !answers_.empty(); }
  // Whether the agent of this name has left, or the job has ended.
  bool HasLeft(const std::string& name) const;

  // The last attempt of which an order told.
  const std::optional<AttemptMemory>& memory() const { return memory_; }
  void Forget() { memory_.reset(); }
  // The term of the coordinator that began the job's first attempt; 0: no order told of one.
  int64_t job_term() const { return job_term_; }
  void NoteReport(const NodeReport& report);

 private:
  bool IsForMe(const LobbyOrder& order) const;
  void NoteJobTerm(LobbyOrder& order);

  const std::string name_;
  std::optional<AttemptMemory> memory_;
  int64_t job_term_;
  int64_t begun_term_;  // The term of the last kStart that Next has given.
  std::deque<LobbyOrder> orders_;
  std::deque<LobbyOrder> stops_;
  std::deque<LobbyOrder> answers_;
  std::vector<std::string> dismissed_;  // The orders say that these agents have left.
  bool ended_ = false;
};

}  // namespace dtrain::launcher
