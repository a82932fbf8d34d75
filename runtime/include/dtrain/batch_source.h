// What Engine::Step and Engine::Evaluate take: where batches come from, and the loss of one.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "dtrain/loss.h"

namespace dtrain {

namespace internal {
template <typename T>
inline constexpr bool kIsStatusOr = false;
template <typename T>
inline constexpr bool kIsStatusOr<absl::StatusOr<T>> = true;

template <typename T>
concept StatusOrBatch = kIsStatusOr<std::remove_cvref_t<T>>;
}  // namespace internal

// Has a member function Next() that returns absl::StatusOr<Batch>, of any type Batch.
template <typename Source>
concept BatchSource = requires(Source& source) {
  { source.Next() } -> internal::StatusOrBatch;
};

// The Batch of a BatchSource.
template <BatchSource Source>
using BatchOf = typename std::remove_cvref_t<decltype(std::declval<Source&>().Next())>::value_type;

// Takes a batch and returns a Loss, or a scalar at::Tensor (the batch's mean loss).
template <typename LossFunction, typename Batch>
concept LossFunctionOf = requires(LossFunction& loss, Batch& batch) {
  { loss(batch) } -> std::convertible_to<Loss>;
};

namespace internal {
// Says what is wrong with the arguments of Engine::Step and Engine::Evaluate in one line.
template <typename Source, typename LossFunction>
constexpr bool AreSourceAndLoss() {
  static_assert(
      BatchSource<Source>,
      "dtrain::BatchSource: Engine::Step and Engine::Evaluate need a source with a member function "
      "Next() that returns absl::StatusOr<Batch>; pass the object itself, not a pointer to it");
  if constexpr (BatchSource<Source>) {
    static_assert(
        LossFunctionOf<LossFunction, BatchOf<Source>>,
        "dtrain::LossFunctionOf: the loss must be callable with the Batch of source.Next() and "
        "return a dtrain::Loss or a scalar at::Tensor that holds the mean loss");
    return LossFunctionOf<LossFunction, BatchOf<Source>>;
  }
  return false;
}
}  // namespace internal

}  // namespace dtrain
