// The arguments of Engine::Step and Engine::Evaluate: a source of batches, and the loss of a batch.
//
//   struct Noise {  // The least that a source is; dtrain/data_loader.h makes one of a dataset.
//     absl::StatusOr<at::Tensor> Next() { return at::randn({8, 3}); }
//   };
//
// Each rank has a source of its own and takes its own share of the data from it. A source may be
// finite: then its Next returns EndOfData() behind its last batch. Ranks may end at different
// batches. A step needs all of its batches and fails with that error; an evaluation ends once no
// rank has a batch.
//
// Further member functions that an evaluation calls where a source has them:
// - BeginPass() and EndPass(), before and after: each sample once from the first on, and back to
//   where the source stood.
// - Restart(), where it has no such pass: back to the first batch.
// - absl::StatusOr<Batch> Spare(): a batch of which nothing counts. At ZeRO stage 3 a rank that has
//   no batch left runs the loss function on it, to take part in gathering the weights that other
//   ranks read. Without Spare it takes the last batch that it had. Its loss is not counted.
// - std::string Description(): what the source reads, for messages. Without it they give the
//   source's type. An exception that leaves Next ends the step with one line that names it.
// A source that derives from Tracked (dtrain/tracked.h) is put back where it was when a step fails.
#pragma once

#include <concepts>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/loss.h"

namespace dtrain {

// "There is no further batch", as an OutOfRange error.
absl::Status EndOfData();
// Whether `status` is EndOfData(), or that with a prefix. Any other OutOfRange is an error.
bool IsEndOfData(const absl::Status& status);

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
// Members that a source may have besides.
template <typename Source>
concept HasPasses = requires(Source& source) {
  source.BeginPass();
  source.EndPass();
};
template <typename Source>
concept HasRestart = requires(Source& source) {
  source.Restart();
};
template <typename Source>
concept HasSpare = requires(Source& source) {
  { source.Spare() } -> std::same_as<decltype(source.Next())>;
};
template <typename Source>
concept HasDescription = requires(Source& source) {
  { source.Description() } -> std::convertible_to<std::string>;
};

// The C++ type of a source, as people write it, from typeid(T).name().
std::string SourceTypeName(const char* type_name);

// Names a source in messages.
template <typename Source>
std::string DescribeSource(Source& source) {
  if constexpr (HasDescription<Source>) {
    return source.Description();
  } else {
    return SourceTypeName(typeid(Source).name());
  }
}

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
