// Numbers of a step that a device may still be computing when the step's call returns.
//
// Late<T> reads as a T; reading waits until the number is there, at most for comm.timeout_s
// or until the device or its group gives up (then numbers are NaN, and the next step fails). On the
// host it is there at once. To be read by the thread that trains.
#pragma once

#include <memory>
#include <utility>

namespace dtrain {

struct StepNumbers {
  double loss = 0;
  double grad_norm = 0;
  bool skipped = false;
  // Times by the device's own clock, in seconds.
  double seconds = 0;
  double forward_s = 0;
  double backward_s = 0;
  double exposed_comm_s = 0;
  double update_s = 0;
};

class LateNumbers {
 public:
  virtual ~LateNumbers() = default;
  virtual bool ready() const = 0;  // Never blocks.
  virtual const StepNumbers& Wait() = 0;
};

template <class T>
class Late {
 public:
  Late(T value = T()) : value_(value) {}  // NOLINT(google-explicit-constructor): reads as a T.
  Late(std::shared_ptr<LateNumbers> numbers, T StepNumbers::*field)
      : numbers_(std::move(numbers)), field_(field) {}
  operator T() const {  // NOLINT(google-explicit-constructor)
    return numbers_ == nullptr ? value_ : numbers_->Wait().*field_;
  }
  bool ready() const { return numbers_ == nullptr || numbers_->ready(); }

 private:
  T value_ = T();
  std::shared_ptr<LateNumbers> numbers_;
  T StepNumbers::*field_ = nullptr;
};

}  // namespace dtrain
