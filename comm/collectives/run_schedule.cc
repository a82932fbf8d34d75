#include "comm/collectives/run_schedule.h"

#include <cstring>
#include <utility>

#include "base/status.h"
#include "comm/collectives/reduce.h"

namespace dtrain::comm {
namespace {

class Runner {
 public:
  Runner(const ScheduleMemory& memory, char* scratch, int size)
      : memory_(memory), scratch_(scratch), size_(size), element_(DTypeBytes(memory.dtype)) {}

  absl::Status Move(const Step& step, absl::Span<const Transfer> ahead, Transport& transport,
                    const WaitContext& context, absl::FunctionRef<void()> meanwhile) {
    List(step, transfers_);
    return transport.Move(transfers_, context, meanwhile, ahead);
  }
  // The transfers of `step`, until the next call.
  absl::Span<const Transfer> Ahead(const Step& step) {
    List(step, ahead_);
    return ahead_;
  }

  void Reduce(const Step& step) {
    const size_t count = step.output.count;
    if (step.inputs.empty() || count == 0) {
      return;
    }
    void* const output = Writable(step.output);
    if (step.inputs.size() == 1) {
      const char* const input = Place(step.inputs[0]);
      if (input != output) {
        std::memmove(output, input, count * element_);
      }
      return;
    }
    if (!step.pairwise) {
      inputs_.clear();
      for (const Range& range : step.inputs) {
        inputs_.push_back(Place(range));
      }
      Sum(output, count, step.complete);
      return;
    }
    std::vector<Range> left = step.inputs;
    while (left.size() > 2) {
      for (size_t i = 0; i < left.size() / 2; ++i) {
        const Range& first = left[2 * i];
        const Range& second = left[2 * i + 1];
        // The other range is this rank's own data and keeps its value.
        const Range& kept = first.area == Area::kScratch ? first : second;
        inputs_ = {Place(first), Place(second)};
        Sum(Writable(kept), count, /*complete=*/false);
        left[i] = kept;
      }
      left.resize(left.size() / 2);
    }
    inputs_ = {Place(left[0]), Place(left[1])};
    Sum(output, count, step.complete);
  }

 private:
  void List(const Step& step, std::vector<Transfer>& transfers) const {
    transfers.clear();
    for (const Message& message : step.sends) {
      transfers.push_back(
          SendTo(message.peer, Place(message.range), message.range.count * element_));
    }
    for (const Message& message : step.receives) {
      transfers.push_back(
          ReceiveFrom(message.peer, Writable(message.range), message.range.count * element_));
    }
  }
  void Sum(void* output, size_t count, bool complete) {
    const bool partial = memory_.op == ReduceOp::kAverage && !complete;
    comm::Reduce({.inputs = inputs_,
                  .outputs = absl::MakeConstSpan(&output, 1),
                  .count = count,
                  .dtype = memory_.dtype,
                  .op = partial ? ReduceOp::kSum : memory_.op,
                  .divisor = memory_.average_over != 0 ? memory_.average_over : size_,
                  .sum_of_squares = complete ? memory_.sum_of_squares : nullptr});
  }
  const char* Place(const Range& range) const {
    return range.area == Area::kInput ? memory_.input + range.start * element_ : Writable(range);
  }
  char* Writable(const Range& range) const {
    return (range.area == Area::kOutput ? memory_.output : scratch_) + range.start * element_;
  }

  const ScheduleMemory& memory_;
  char* const scratch_;
  const int size_;
  const size_t element_;
  std::vector<Transfer> transfers_;
  std::vector<Transfer> ahead_;
  std::vector<const void*> inputs_;
};

}  // namespace

absl::Status RunSchedule(const Schedule& schedule, const ScheduleMemory& memory,
                         std::vector<char>& scratch, Transport& transport,
                         const WaitContext& context, const ScheduleEnds& ends) {
  const size_t bytes = schedule.scratch_elements() * DTypeBytes(memory.dtype);
  if (scratch.size() < bytes) {
    scratch.resize(bytes);
  }
  Runner runner(memory, scratch.data(), transport.size());
  const bool in_place = memory.input == memory.output;
  Step before;  // The previous step, whose sum may still be due.
  Step step;
  Step next;
  if (schedule.steps() > 0) {
    schedule.Fill(0, step);
  }
  DT_RETURN_IF_ERROR(ends.before(runner.Ahead(step)));
  for (size_t index = 0; index < schedule.steps(); ++index) {
    const bool last = index + 1 == schedule.steps();
    if (!last) {
      schedule.Fill(index + 1, next);
    }
    if (!before.deferred) {
      runner.Reduce(before);
      before = Step();
    }
    absl::Span<const Transfer> ahead;
    if (last) {
      ahead = ends.behind(/*summed=*/step.inputs.empty() || step.output.count == 0);
    } else if (MayBeginDuring(step, next, in_place)) {
      ahead = runner.Ahead(next);
    }
    DT_RETURN_IF_ERROR(runner.Move(step, ahead, transport, context,
                                   [&runner, &before] { runner.Reduce(before); }));
    std::swap(step, before);
    std::swap(next, step);
  }
  runner.Reduce(before);
  return absl::OkStatus();
}

}  // namespace dtrain::comm
