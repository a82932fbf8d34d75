// Cases of eight-bit numbers: FP8 casts, the largest magnitude that they are scaled by, and int8 in
// blocks of 256.
#include "bench/kernels/both_types.h"
#include "kernels/quantize/fp8.h"
#include "kernels/quantize/int8_blocks.h"

namespace dtrain::bench {
namespace {

using kernels::Fp8Format;

template <class T>
constexpr DType kTypeOf = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;

template <class T>
Kernel Amax() {
  return [](Arena& a, const Threads& t) {
    kernels::AmaxCpu(a.elements, {a.Stream<T>(0), kTypeOf<T>}, t);
  };
}

template <class T>
Kernel ToFp8(Fp8Format format) {
  return [=](Arena& a, const Threads& t) {
    float amax = 0;
    kernels::CastToFp8Cpu({.n = a.elements,
                           .format = format,
                           .src = {a.Stream<T>(0), kTypeOf<T>},
                           .dst = a.Stream<uint8_t>(1),
                           .amax = &amax},
                          16.0F, t);
  };
}

template <class T>
Kernel FromFp8(Fp8Format format) {
  return [=](Arena& a, const Threads& t) {
    kernels::CastFromFp8Cpu({.n = a.elements,
                             .format = format,
                             .src = a.Stream<uint8_t>(0),
                             .dst = {a.Stream<T>(1), kTypeOf<T>}},
                            0.0625F, t);
  };
}

template <class T>
Kernel QuantizeInt8() {
  return [](Arena& a, const Threads& t) {
    kernels::QuantizeInt8Cpu({.n = a.elements,
                              .src = {a.Stream<T>(0), kTypeOf<T>},
                              .values = a.Stream<int8_t>(1),
                              .scales = a.Stream<float>(2)},
                             t);
  };
}

template <class T>
Kernel DequantizeInt8() {
  return [](Arena& a, const Threads& t) {
    kernels::DequantizeInt8Cpu({.n = a.elements,
                                .values = a.Stream<int8_t>(0),
                                .scales = a.Stream<float>(2),
                                .dst = {a.Stream<T>(1), kTypeOf<T>}},
                               t);
  };
}

// A type's kernel reads or writes one stream of it and one of bytes.
template <class Make>
void AddBeside(std::vector<Case>& cases, const std::string& name, bool to_bytes, Make make) {
  const StreamMix wide =
      to_bytes ? StreamMix{.read4 = 1, .write1 = 1} : StreamMix{.write4 = 1, .read1 = 1};
  const StreamMix narrow =
      to_bytes ? StreamMix{.read2 = 1, .write1 = 1} : StreamMix{.write2 = 1, .read1 = 1};
  cases.push_back({name + "_f32", wide, make(float{})});
  cases.push_back({name + "_bf16", narrow, make(BFloat16{})});
}

}  // namespace

std::vector<Case> NarrowCases() {
  std::vector<Case> cases;
  AddBothTypes(cases, "amax", 1, 0, [](auto type) { return Amax<decltype(type)>(); });
  for (const auto format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    const std::string name = format == Fp8Format::kE4m3 ? "e4m3" : "e5m2";
    AddBeside(cases, "cast_to_" + name, true,
              [=](auto type) { return ToFp8<decltype(type)>(format); });
    AddBeside(cases, "cast_from_" + name, false,
              [=](auto type) { return FromFp8<decltype(type)>(format); });
  }
  AddBeside(cases, "quantize_int8", true, [](auto type) { return QuantizeInt8<decltype(type)>(); });
  AddBeside(cases, "dequantize_int8", false,
            [](auto type) { return DequantizeInt8<decltype(type)>(); });
  return cases;
}

}  // namespace dtrain::bench
