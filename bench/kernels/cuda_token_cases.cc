// Cases of a model's ends, and of eight-bit numbers. The fused classifier is products and, between
// them, what "cross_entropy" measures.
#include "base/status.h"
#include "bench/kernels/cuda_case.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/dropout_stream.h"
#include "kernels/layers/embedding.h"
#include "kernels/quantize/fp8.h"
#include "kernels/quantize/int8_blocks.h"

namespace dtrain::bench {
namespace {

using kernels::Fp8Format;

template <class T>
constexpr DType kTypeOf = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;

// A type's kernel reads or writes one stream of it and one of bytes.
template <class Operation>
void AddBeside(std::vector<Case>& cases, const std::string& name, bool to_bytes,
               Operation operation) {
  const StreamMix wide =
      to_bytes ? StreamMix{.read4 = 1, .write1 = 1} : StreamMix{.write4 = 1, .read1 = 1};
  const StreamMix narrow =
      to_bytes ? StreamMix{.read2 = 1, .write1 = 1} : StreamMix{.write2 = 1, .read1 = 1};
  cases.push_back({name + "_f32", wide, [=](const Arena& a, CudaStream stream) {
                     return operation(float{}, a, stream);
                   }});
  cases.push_back({name + "_bf16", narrow, [=](const Arena& a, CudaStream stream) {
                     return operation(BFloat16{}, a, stream);
                   }});
}

void AddFp8(std::vector<Case>& cases, Fp8Format format, const std::string& name) {
  AddBeside(cases, "cast_to_" + name, true, [=](auto type, const Arena& a, CudaStream stream) {
    return kernels::CastToFp8Cuda({.n = a.elements,
                                   .format = format,
                                   .src = {a.streams[0], kTypeOf<decltype(type)>},
                                   .dst = a.Stream<uint8_t>(1),
                                   .amax = a.row_numbers[0]},
                                  a.rstd, stream);
  });
  AddBeside(cases, "cast_from_" + name, false, [=](auto type, const Arena& a, CudaStream stream) {
    return kernels::CastFromFp8Cuda({.n = a.elements,
                                     .format = format,
                                     .src = a.Stream<uint8_t>(0),
                                     .dst = {a.streams[1], kTypeOf<decltype(type)>}},
                                    a.rstd, stream);
  });
  // The codes and their transpose: twice as many bytes written.
  const auto transpose = [=](auto type, const Arena& a, CudaStream stream) {
    return kernels::TransposeToFp8Cuda({.rows = a.rows(),
                                        .columns = kHidden,
                                        .format = format,
                                        .src = {a.streams[0], kTypeOf<decltype(type)>},
                                        .dst = a.Stream<uint8_t>(1),
                                        .transposed = a.Stream<uint8_t>(2)},
                                       a.rstd, stream);
  };
  cases.push_back(
      {"transpose_to_" + name + "_bf16",
       {.read2 = 1, .write1 = 2},
       [=](const Arena& a, CudaStream stream) { return transpose(BFloat16{}, a, stream); }});
}

}  // namespace

std::vector<Case> CudaTokenCases() {
  std::vector<Case> cases;
  // Losses and the gradient of their sum, in one pass over each row.
  AddBoth(cases, "cross_entropy", 1, 1, [](auto type, const Arena& a, CudaStream stream) {
    using T = decltype(type);
    return kernels::CrossEntropyForwardCuda(
        kernels::CrossEntropyArgs<T>{.tokens = a.elements / kVocab,
                                     .vocab = kVocab,
                                     .logits = a.Stream<T>(0),
                                     .targets = a.targets,
                                     .losses = a.row_numbers[0],
                                     .lse = a.row_numbers[1],
                                     .gradient = a.Stream<T>(1)},
        stream);
  });
  AddBoth(cases, "dropout", 1, 1, [](auto type, const Arena& a, CudaStream stream) {
    using T = decltype(type);
    return kernels::DropoutStreamCuda(
        kernels::DropoutArgs<T>{
            .count = a.elements, .p = 0.1, .x = a.Stream<T>(0), .out = a.Stream<T>(1)},
        a.random, stream);
  });
  AddBoth(cases, "embedding_backward", 1, 1, [](auto type, const Arena& a, CudaStream stream) {
    using T = decltype(type);
    return kernels::EmbeddingBackwardCuda(
        kernels::EmbeddingBackwardArgs<T>{.tokens = a.rows(),
                                          .vocab = a.rows(),
                                          .width = kHidden,
                                          .ids = a.ids,
                                          .dy = a.Stream<T>(0),
                                          .dweight = a.Stream<T>(1)},
        a.sort_workspace, a.sort_bytes, stream);
  });
  return cases;
}

std::vector<Case> CudaNarrowCases() {
  std::vector<Case> cases;
  AddFp8(cases, Fp8Format::kE4m3, "e4m3");
  AddFp8(cases, Fp8Format::kE5m2, "e5m2");
  AddBeside(cases, "quantize_int8", true, [](auto type, const Arena& a, CudaStream stream) {
    return kernels::QuantizeInt8Cuda({.n = a.elements,
                                      .src = {a.streams[0], kTypeOf<decltype(type)>},
                                      .values = a.Stream<int8_t>(1),
                                      .scales = a.Stream<float>(2)},
                                     stream);
  });
  AddBeside(cases, "dequantize_int8", false, [](auto type, const Arena& a, CudaStream stream) {
    return kernels::DequantizeInt8Cuda({.n = a.elements,
                                        .values = a.Stream<int8_t>(0),
                                        .scales = a.Stream<float>(2),
                                        .dst = {a.streams[1], kTypeOf<decltype(type)>}},
                                       stream);
  });
  return cases;
}

}  // namespace dtrain::bench
