#include "runtime/optimizer/state_stream.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain {

// One near buffer. The thread that updates waits until it is loaded; all else happens in the
// worker's order.
struct StateStream::Buffer {
  std::vector<std::vector<std::byte>> states;  // By state, for the largest chunk.
  std::vector<std::byte*> near;
  std::mutex mutex;
  std::condition_variable changed;
  bool idle = true;  // The worker has nothing to do with it.
  absl::Status status;

  void Begin() {
    std::lock_guard lock(mutex);
    idle = false;
  }
  void End(absl::Status result) {
    std::lock_guard lock(mutex);
    status.Update(result);
    idle = true;
    changed.notify_one();
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return idle; });
    return std::exchange(status, absl::OkStatus());
  }
};

std::vector<StateChunk> CutChunks(absl::Span<const std::vector<UpdatePiece>> buckets,
                                  int64_t elements_max, int64_t near_elements) {
  // Chunks that are as large as a block of norms end with one, so that a rule's sums have one
  // order.
  const int64_t unit = elements_max >= kernels::kNormBlock ? kernels::kNormBlock : 1;
  std::vector<StateChunk> chunks;
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    chunks.push_back({.bucket = static_cast<int>(bucket)});
    for (UpdatePiece rest : buckets[bucket]) {
      while (rest.elements > 0) {
        const bool near = rest.local < near_elements;
        if (chunks.back().pieces.empty()) {
          chunks.back().local = rest.local;
          chunks.back().near = near;
        }
        const int64_t limit = (chunks.back().local + elements_max) / unit * unit;
        const int64_t end = chunks.back().near ? std::min(limit, near_elements) : limit;
        const int64_t room = end - rest.local;
        if (room <= 0) {
          chunks.push_back({.bucket = static_cast<int>(bucket)});
          continue;
        }
        UpdatePiece taken = rest;
        taken.elements = std::min(rest.elements, room);
        chunks.back().pieces.push_back(taken);
        chunks.back().elements = taken.local + taken.elements - chunks.back().local;
        rest.flat += taken.elements;
        rest.local += taken.elements;
        rest.elements -= taken.elements;
      }
    }
    chunks.back().ends_bucket = true;
  }
  return chunks;
}

StateStream::StateStream(std::vector<FarState> states, const StreamOptions& options)
    : states_(std::move(states)), options_(options) {
  DT_CHECK_GE(options.buffers, 2);
  for (int i = 0; i < options.buffers; ++i) {
    Buffer& buffer = *buffers_.emplace_back(std::make_unique<Buffer>());
    for (const FarState& state : states_) {
      const int64_t largest = std::min(options.chunk_elements, state.tensor().numel());
      buffer.states.emplace_back(static_cast<size_t>(largest) * state.tensor().element_size());
      buffer.near.push_back(buffer.states.back().data());
    }
  }
  for (int i = 0; i < std::clamp(options.threads, 1, options.buffers); ++i) {
    workers_.push_back(std::make_unique<Worker>(
        WorkerOptions{.name = absl::StrCat("dtrain-offload", i),
                      .queue_capacity = static_cast<size_t>(2 * options.buffers + 1)}));
  }
}

StateStream::~StateStream() = default;

void StateStream::Load(Buffer& buffer, int64_t local, int64_t elements) {
  absl::Status status;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto width = static_cast<int64_t>(states_[i].tensor().element_size());
    status.Update(
        states_[i].Read(local * width, {buffer.near[i], static_cast<size_t>(elements * width)}));
  }
  buffer.End(status);
}

void StateStream::Store(Buffer& buffer, int64_t local, int64_t elements) {
  absl::Status status;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto width = static_cast<int64_t>(states_[i].tensor().element_size());
    status.Update(
        states_[i].Write(local * width, {buffer.near[i], static_cast<size_t>(elements * width)}));
  }
  std::lock_guard lock(buffer.mutex);
  buffer.status.Update(status);
}

std::vector<std::byte*> StateStream::NearAt(int64_t local) const {
  std::vector<std::byte*> near;
  for (const FarState& state : states_) {
    near.push_back(static_cast<std::byte*>(state.tensor().mutable_data_ptr()) +
                   local * static_cast<int64_t>(state.tensor().element_size()));
  }
  return near;
}

// Until the workers' last tasks are done: what is left of them is nobody's.
void StateStream::Drain() {
  std::mutex mutex;
  std::condition_variable changed;
  size_t drained = 0;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->Submit([&] {
      std::lock_guard lock(mutex);
      ++drained;
      changed.notify_one();
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return drained == workers_.size(); });
}

absl::Status StateStream::Run(absl::Span<const StateChunk> chunks, Body body) {
  std::vector<const StateChunk*> far;
  for (const StateChunk& chunk : chunks) {
    if (!chunk.near && chunk.elements > 0) {
      far.push_back(&chunk);
    }
  }
  const auto load = [&](size_t index) {
    const size_t place = index % buffers_.size();
    Buffer& buffer = *buffers_[place];
    buffer.Begin();
    WorkerOf(place).Submit([this, &buffer, local = far[index]->local,
                            elements = far[index]->elements] { Load(buffer, local, elements); });
  };
  for (size_t i = 0; i < std::min(buffers_.size(), far.size()); ++i) {
    load(i);
  }
  absl::Status status;
  size_t index = 0;  // The next far chunk.
  for (const StateChunk& chunk : chunks) {
    if (index == far.size() || &chunk != far[index]) {
      body(chunk, NearAt(chunk.local));
      continue;
    }
    const size_t place = index % buffers_.size();
    Buffer& buffer = *buffers_[place];
    status.Update(buffer.Wait());
    if (!status.ok()) {
      break;
    }
    body(chunk, buffer.near);
    WorkerOf(place).Submit([this, &buffer, local = chunk.local, elements = chunk.elements] {
      Store(buffer, local, elements);
    });
    if (index + buffers_.size() < far.size()) {
      load(index + buffers_.size());
    }
    ++index;
  }
  Drain();
  for (const std::unique_ptr<Buffer>& buffer : buffers_) {
    status.Update(buffer->Wait());
  }
  return status;
}

}  // namespace dtrain
