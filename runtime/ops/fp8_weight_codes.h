// FP8 codes of weights that the micro-batches of a step share: weights change in an update, so
// those of the first micro-batch serve all. They cost two bytes a number, as it is and transposed,
// from a micro-batch that wants them to the step's update. Process-wide; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "dtrain/fp8.h"
#include "runtime/ops/fp8_matrix.h"

namespace dtrain::ops {

// ToFp8 and TransposedToFp8 in e4m3 of weights [out_i, in] that together are `merged` [sum of
// out_i, in], or the same bits kept from before.
Fp8Matrix WeightsToFp8(at::TensorList weights, const at::Tensor& merged,
                       Fp8Options::Scaling scaling);
Fp8Matrix TransposedWeightsToFp8(at::TensorList weights, const at::Tensor& merged,
                                 Fp8Options::Scaling scaling, const Fp8Matrix& known);

// While one of this class lives nothing kept is read and nothing is kept: for what is captured,
// whose launches read weights of later steps.
class WithoutKeptCodes {
 public:
  WithoutKeptCodes();
  WithoutKeptCodes(const WithoutKeptCodes&) = delete;
  WithoutKeptCodes& operator=(const WithoutKeptCodes&) = delete;
  ~WithoutKeptCodes();
};

// While it is open, operations keep the codes of some weights. A weight that an operation of
// LibTorch wrote to since, or that is in other memory, is found out and has codes of its own, and
// all do after NoteWrites; what else writes (raw pointers, `.data`) must not, from Open to Close.
class KeptWeightCodes {
 public:
  // Closed. Who keeps a weight's codes already hands it over.
  explicit KeptWeightCodes(std::vector<at::Tensor> weights);
  KeptWeightCodes(const KeptWeightCodes&) = delete;
  KeptWeightCodes& operator=(const KeptWeightCodes&) = delete;
  ~KeptWeightCodes();
  void Open();
  // Drops all codes. May be closed already.
  void Close();
  // Weights are about to be written by other means than LibTorch's operations, as an engine's
  // update writes them: no codes kept so far, of any object, are read again.
  static void NoteWrites();

  // Internal. `weights` as one, in one form: the codes that are kept, else what `make` gives, which
  // is kept, with the first, where all of them are an open object's.
  enum class Form { kAsIs, kTransposed };
  static Fp8Matrix Get(at::TensorList weights, Fp8Options::Scaling scaling, Form form,
                       absl::FunctionRef<Fp8Matrix()> make);

 private:
  // What codes were made of, and where: on another stream they may not be there yet.
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
    Source source;
    Fp8Matrix as_is, transposed;
    Fp8Matrix& of(Form form) { return form == Form::kAsIs ? as_is : transposed; }
  };
  static Source SourceOf(at::TensorList weights, Fp8Options::Scaling scaling);

  const std::vector<at::Tensor> weights_;
  // By the registry's mutex.
  std::vector<Codes> codes_;  // By weight; empty: closed.
  uint64_t opening_ = 0;      // Which of all openings this one is.
};

}  // namespace dtrain::ops
