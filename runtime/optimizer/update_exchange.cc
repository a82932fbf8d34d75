#include "runtime/optimizer/update_exchange.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace dtrain {

// One chunk's buffers. Filled by the fetching stream after `returned`, read and written by the host
// after `fetched`, emptied by the returning stream.
struct UpdateExchange::Slot {
  std::unique_ptr<PinnedMemory> gradient;  // [chunk] fp32.
  std::unique_ptr<PinnedMemory> values;    // [chunk] of the values' type.
  std::unique_ptr<DeviceEvent> fetched;
  std::unique_ptr<DeviceEvent> returned;

  float* gradient_at(int64_t place) const { return static_cast<float*>(gradient->data()) + place; }
  std::byte* value_at(int64_t place, size_t width) const {
    return static_cast<std::byte*>(values->data()) + static_cast<size_t>(place) * width;
  }
};

std::vector<UpdatePiece> JoinedPieces(absl::Span<const UpdatePiece> pieces) {
  std::vector<UpdatePiece> joined;
  for (const UpdatePiece& piece : pieces) {
    if (!joined.empty() && joined.back().flat + joined.back().elements == piece.flat &&
        joined.back().local + joined.back().elements == piece.local) {
      joined.back().elements += piece.elements;
    } else {
      joined.push_back({.flat = piece.flat, .local = piece.local, .elements = piece.elements});
    }
  }
  return joined;
}

UpdateExchange::UpdateExchange(const Device& device, const EngineState& state, StateStream* states,
                               const ExchangeOptions& options)
    : device_(device), state_(state), states_(states), options_(options) {
  DT_CHECK_GE(options.buffers, 3);
}

UpdateExchange::~UpdateExchange() {
  for (const auto* stream : {&fetches_, &returns_}) {
    if (*stream != nullptr) {
      (*stream)->Synchronize().IgnoreError();  // They still use the buffers.
    }
  }
}

absl::StatusOr<std::unique_ptr<UpdateExchange>> UpdateExchange::Create(
    const Device& device, const EngineState& state, StateStream* states,
    const ExchangeOptions& options) {
  std::unique_ptr<UpdateExchange> made(new UpdateExchange(device, state, states, options));
  DT_RETURN_IF_ERROR(made->Allocate());
  return made;
}

absl::Status UpdateExchange::Allocate() {
  const auto elements = static_cast<size_t>(options_.chunk_elements);
  slots_.resize(static_cast<size_t>(options_.buffers));
  for (Slot& slot : slots_) {
    DT_ASSIGN_OR_RETURN(slot.gradient, PinnedMemory::Create(device_, elements * sizeof(float)));
    if (!options_.values_on_host) {
      DT_ASSIGN_OR_RETURN(slot.values, PinnedMemory::Create(device_, elements * value_bytes()));
    }
    DT_ASSIGN_OR_RETURN(slot.fetched, DeviceEvent::Create(device_, /*timing=*/false));
    DT_ASSIGN_OR_RETURN(slot.returned, DeviceEvent::Create(device_, /*timing=*/false));
  }
  DT_ASSIGN_OR_RETURN(begun_, DeviceEvent::Create(device_, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(fetches_, DeviceStream::Create(device_));
  DT_ASSIGN_OR_RETURN(returns_, DeviceStream::Create(device_));
  return absl::OkStatus();
}

std::vector<StateChunk> UpdateExchange::Cut(
    absl::Span<const std::vector<UpdatePiece>> buckets) const {
  return states_ != nullptr ? states_->Cut(buckets) : CutChunks(buckets, options_.chunk_elements);
}

int64_t UpdateExchange::bytes() const {
  return options_.buffers * options_.chunk_elements *
         static_cast<int64_t>(sizeof(float) + (options_.values_on_host ? 0 : value_bytes()));
}

absl::Status UpdateExchange::Fetch(const StateChunk& chunk, const ReducedGradient& gradient,
                                   const Slot& slot) {
  DT_RETURN_IF_ERROR(fetches_->WaitFor(*slot.returned));
  for (const UpdatePiece& run : JoinedPieces(chunk.pieces)) {
    const int64_t place = run.local - chunk.local;
    const auto elements = static_cast<size_t>(run.elements);
    DT_RETURN_IF_ERROR(fetches_->Copy(slot.gradient_at(place), gradient.at(run.flat, run.local),
                                      elements * sizeof(float)));
    if (fetches_values()) {
      DT_RETURN_IF_ERROR(fetches_->Copy(slot.value_at(place, value_bytes()),
                                        state_.value_at(run.flat, run.local),
                                        elements * value_bytes()));
    }
  }
  return fetches_->Record(*slot.fetched);
}

absl::Status UpdateExchange::Return(const StateChunk& chunk, const Slot& slot) {
  for (const UpdatePiece& run : JoinedPieces(chunk.pieces)) {
    DT_RETURN_IF_ERROR(returns_->Copy(state_.value_at(run.flat, run.local),
                                      slot.value_at(run.local - chunk.local, value_bytes()),
                                      static_cast<size_t>(run.elements) * value_bytes()));
  }
  returned_ = slot.returned.get();
  return returns_->Record(*returned_);
}

PieceMemory UpdateExchange::MemoryIn(const Slot& slot, int64_t place, PieceMemory memory) const {
  memory.gradient = slot.gradient_at(place);
  if (options_.values_on_host) {
    return memory;
  }
  std::byte* const values = slot.value_at(place, value_bytes());
  if (memory.bf16 != nullptr) {
    memory.bf16 = reinterpret_cast<BFloat16*>(values);
  } else if (memory.fp16 != nullptr) {
    memory.fp16 = reinterpret_cast<Float16*>(values);
  } else {
    memory.weights = reinterpret_cast<float*>(values);
  }
  return memory;
}

absl::Status UpdateExchange::Run(absl::Span<const StateChunk> chunks,
                                 const ReducedGradient& gradient, Changes changes, Body body,
                                 Ended ended) {
  std::vector<const StateChunk*> filled;
  for (const StateChunk& chunk : chunks) {
    if (chunk.elements > 0) {
      filled.push_back(&chunk);
    }
  }
  DT_RETURN_IF_ERROR(begun_->Record());
  DT_RETURN_IF_ERROR(fetches_->WaitFor(*begun_));
  absl::Status status;
  size_t fetched = 0;
  const auto fetch_until = [&](size_t end) {
    for (; status.ok() && fetched < std::min(end, filled.size()); ++fetched) {
      status = Fetch(*filled[fetched], gradient, slots_[fetched % slots_.size()]);
    }
  };
  fetch_until(slots_.size());
  size_t taken = 0;
  const auto take = [&](const StateChunk& chunk, absl::Span<std::byte* const> near) {
    const Slot& slot = slots_[taken % slots_.size()];
    status = slot.fetched->Wait(Deadline::After(options_.timeout));
    if (!status.ok()) {
      return;
    }
    for (const UpdatePiece& piece : chunk.pieces) {
      const PieceMemory memory = states_ != nullptr
                                     ? NearMemoryOf(state_, gradient, piece, chunk.local, near)
                                     : MemoryOf(state_, gradient, piece);
      body(piece, MemoryIn(slot, piece.local - chunk.local, memory));
    }
    if (changes == Changes::kValues && !options_.values_on_host) {
      status = Return(chunk, slot);
    }
    ++taken;
    fetch_until(taken + slots_.size());
  };
  const auto end_bucket = [&](int bucket) {
    if (returned_ != nullptr) {  // Earlier chunks went on the same stream before it.
      status = device_.Check(device_.api().StreamWaitEvent(device_.stream(), returned_->handle()),
                             "cudaStreamWaitEvent");
    }
    if (status.ok()) {
      ended(bucket);
    }
  };
  const auto step = [&](const StateChunk& chunk, absl::Span<std::byte* const> near) {
    if (status.ok() && chunk.elements > 0) {
      take(chunk, near);
    }
    if (status.ok() && chunk.ends_bucket) {
      end_bucket(chunk.bucket);
    }
  };
  if (states_ != nullptr) {
    const absl::Status streamed = states_->Run(chunks, step);
    status.Update(streamed);
    return status;
  }
  for (const StateChunk& chunk : chunks) {
    step(chunk, {});
  }
  return status;
}

}  // namespace dtrain
