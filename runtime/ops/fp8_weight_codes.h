// FP8 codes of weights that the micro-batches of a step share: weights change in an update, so
// those of the first micro-batch serve all. They cost two bytes a number, as it is and transposed,
// from a micro-batch that wants them to the step's update, or where they last, from then on.
// Process-wide; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "dtrain/fp8.h"
#include "runtime/ops/fp8_matrix.h"

namespace dtrain::ops {

// ToFp8 and TransposedToFp8 in e4m3 of weights [out_i, in], contiguous, that are one matrix [sum of
// out_i, in] together; or the same bits kept from before.
Fp8Matrix WeightsToFp8(at::TensorList weights, Fp8Options::Scaling scaling);
Fp8Matrix TransposedWeightsToFp8(at::TensorList weights, Fp8Options::Scaling scaling,
                                 const Fp8Matrix& known);

// While it is open, operations keep the codes of some weights. A weight that an operation of
// LibTorch wrote to since, or that is in other memory, is found out and has codes of its own, and
// all do after NoteWrites; what else writes (raw pointers, `.data`) must not, from Open to Close.
class KeptWeightCodes {
 public:
  // For how long codes stay in memory. Beyond an opening they are for what was captured
  // (WithoutKeptCodes): what launches read stays where it is, and Refresh brings it up to date.
  enum class Lifetime { kOpening, kLasting };

  // Begins closed. Another object that keeps codes of these weights hands them over to this one.
  explicit KeptWeightCodes(std::vector<at::Tensor> weights);
  KeptWeightCodes(const KeptWeightCodes&) = delete;
  KeptWeightCodes& operator=(const KeptWeightCodes&) = delete;
  ~KeptWeightCodes();
  // No codes are up to date. REQUIRES of kOpening: no launch reads lasting ones any more.
  void Open(Lifetime lifetime = Lifetime::kOpening);
  // Nothing kept is read or up to date any more. May be closed already.
  void Close();
  // Makes lasting codes anew where they lie, of those weights that may have changed: all, while
  // this is closed. Queued on the current stream, for launches, captures and micro-batches after
  // it. False: weights of captured codes have come to be of another shape, so that what was
  // captured cannot be launched again. Does nothing where codes do not last.
  bool Refresh();
  // Weights are about to be written by other means than LibTorch's operations, as an engine's
  // update writes them: no codes kept so far, of any object, are up to date.
  static void NoteWrites();

  // Internal. `weights` as one, in one form: the codes that are kept, else what `make` gives, which
  // is kept, with the first, where all of them are an open object's.
  enum class Form { kAsIs, kTransposed };
  static Fp8Matrix Get(at::TensorList weights, Fp8Options::Scaling scaling, Form form,
                       absl::FunctionRef<Fp8Matrix()> make);

 private:
  friend class WithoutKeptCodes;
  // The weights that codes were made of, and the stream: on another one they may not be there yet.
  struct Weight {
    const void* data = nullptr;
    uint32_t version = 0;
    bool operator==(const Weight&) const = default;
  };
  struct Source {
    std::vector<Weight> weights;
    uint64_t writes = 0;  // Calls of NoteWrites.
    Fp8Options::Scaling scaling = {};
    const void* stream = nullptr;
    bool operator==(const Source&) const = default;
  };
  struct Codes {
    std::vector<at::Tensor> weights;
    Source source;  // Without weights: what was made is not up to date.
    Fp8Matrix as_is, transposed;
    bool captured = false;  // Launches read them: their memory stays.
    Fp8Matrix& of(Form form) { return form == Form::kAsIs ? as_is : transposed; }
  };
  static Source SourceOf(at::TensorList weights, Fp8Options::Scaling scaling);
  static bool CanBeMadeAgain(const Codes& codes);
  // By the registry's mutex, all of them. The codes that an operation may have; null: none.
  Codes* Find(size_t index, const Source& source, Form form);
  void Keep(size_t index, at::TensorList weights, const Source& source, Form form,
            const Fp8Matrix& made);

  const std::vector<at::Tensor> weights_;
  // By the registry's mutex.
  std::vector<Codes> codes_;  // By weight; empty where nothing is kept.
  uint64_t opening_ = 0;      // The number of this opening among all; 0: closed.
  bool lasting_ = false;
  bool capturing_ = false;
};

// While one of this class lives nothing is kept, and nothing kept is read but lasting codes of
// `lasting`, which Refresh has made, if it is given: for what is captured, whose launches read
// weights of later steps, and codes where they lie.
class WithoutKeptCodes {
 public:
  explicit WithoutKeptCodes(KeptWeightCodes* lasting = nullptr);
  WithoutKeptCodes(const WithoutKeptCodes&) = delete;
  WithoutKeptCodes& operator=(const WithoutKeptCodes&) = delete;
  ~WithoutKeptCodes();

 private:
  KeptWeightCodes* const lasting_;
};

}  // namespace dtrain::ops
