// Numbers of a step that a device may still be computing when the step's call returns.
//
// Late<T> reads as a T; reading waits until the number is there, at most for comm.timeout_s
// or until the device or its group gives up (then numbers are NaN, and the next step fails). On the
// host it is there at once. To be read by the thread that trains.
#pragma once

#include <memory>
#include <utility>

namespace dtrain {

// The numbers that a device reports about a step when it has ended.
struct StepNumbers {
  double loss = 0;       // Mean over the global batch.
  double grad_norm = 0;  // Global L2 norm before clipping.
  bool skipped = false;  // Nothing was updated.
  // Times by the device's own clock, in seconds.
  double seconds = 0;
  double forward_s = 0;       // All micro-batches.
  double backward_s = 0;      // All micro-batches.
  double exposed_comm_s = 0;  // Waiting for communication.
  double update_s = 0;        // The optimizer's update.
};

// Numbers that a device will write. The engine implements it.
class LateNumbers {
 public:
  virtual ~LateNumbers() = default;
  virtual bool ready() const = 0;  // Never blocks.
  // Waits for the numbers, within the bound that this file's beginning names, and gives them.
  virtual const StepNumbers& Wait() = 0;
};

// A T that is there now, or a field of numbers that a device will write.
template <class T>
class Late {
 public:
  // Holds a value that is there.
  Late(T value = T()) : value_(value) {}  // NOLINT(google-explicit-constructor): reads as a T.
  // Holds `field` of the numbers that come.
  Late(std::shared_ptr<LateNumbers> numbers, T StepNumbers::*field)
      : numbers_(std::move(numbers)), field_(field) {}
  // Reads the value, and waits for it where it is not there.
  operator T() const {  // NOLINT(google-explicit-constructor)
    return numbers_ == nullptr ? value_ : numbers_->Wait().*field_;
  }
  // Whether reading does not wait.
  bool ready() const { return numbers_ == nullptr || numbers_->ready(); }

 private:
  T value_ = T();
  std::shared_ptr<LateNumbers> numbers_;
  T StepNumbers::*field_ = nullptr;
};

}  // namespace dtrain
