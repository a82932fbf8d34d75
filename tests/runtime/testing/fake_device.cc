#include "tests/runtime/testing/fake_device.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "comm/nccl/fake/fake_kernels.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/staged_group.h"
#include "kernels/layers/philox.h"
#include "kernels/optimizer/adagrad_math.h"
#include "kernels/optimizer/adamw_math.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lamb_math.h"
#include "kernels/optimizer/lion_math.h"
#include "kernels/optimizer/muon_math.h"
#include "kernels/optimizer/sgd_math.h"
#include "kernels/optimizer/stochastic_math.h"
#include "tests/runtime/testing/emulated_kernels.h"
#include "tests/runtime/testing/fake_graph.h"
#include "tests/runtime/testing/fake_op_kernels.h"

namespace dtrain::testing {
namespace {

comm::FakeCuda* the_cuda = nullptr;

constexpr auto kSet = [](float value) { return value; };

void Inline(int64_t count, int64_t /*grain*/, absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (count > 0) {
    body(0, count);
  }
}

int launches = 0;
bool emulated = false;

absl::Status Queue(CudaStream stream, std::function<void()> operation) {
  ++launches;
  auto* const fake = reinterpret_cast<comm::CudaStream*>(stream);
  DT_CHECK(fake != nullptr) << " a kernel was launched on the default stream";
  return the_cuda->Enqueue(fake, std::move(operation)) == comm::CudaResult::kSuccess
             ? absl::OkStatus()
             : absl::InternalError("a kernel was launched on a stream that does not exist");
}

float Load(kernels::MutableFlat state, int64_t i) {
  return state.dtype == DType::kFloat32 ? static_cast<const float*>(state.data)[i]
                                        : ToFloat(static_cast<const BFloat16*>(state.data)[i]);
}

void Store(float value, kernels::MutableFlat state, int64_t i) {
  if (state.dtype == DType::kFloat32) {
    static_cast<float*>(state.data)[i] = value;
  } else {
    static_cast<BFloat16*>(state.data)[i] = ToBFloat16(value);
  }
}

absl::Status AdamW(int64_t n, float* p, const float* g, kernels::MutableFlat m,
                   kernels::MutableFlat v, BFloat16* out, const kernels::AdamWStepScalars* scalars,
                   CudaStream stream) {
  return Queue(stream, [=] {
    for (int64_t i = 0; i < n && scalars->skip == 0; ++i) {
      const auto next = kernels::AdamWElement(
          kernels::AdamWState<float>{p[i], Load(m, i), Load(v, i)}, g[i], *scalars, kSet);
      p[i] = next.p;
      Store(next.m, m, i);
      Store(next.v, v, i);
      if (out != nullptr) {
        out[i] = ToBFloat16(next.p);
      }
    }
  });
}

absl::Status AdamWFp32(int64_t n, float* p, const float* g, float* m, float* v, BFloat16* out,
                       const kernels::AdamWStepScalars* scalars, CudaStream stream) {
  return AdamW(n, p, g, {m, DType::kFloat32}, {v, DType::kFloat32}, out, scalars, stream);
}

absl::Status AdamWBf16(int64_t n, float* p, const float* g, BFloat16* m, BFloat16* v, BFloat16* out,
                       const kernels::AdamWStepScalars* scalars, CudaStream stream) {
  return AdamW(n, p, g, {m, DType::kBFloat16}, {v, DType::kBFloat16}, out, scalars, stream);
}

// By the CPU's kernel for elements one at a time, which takes options; the bits it draws are those
// of the CUDA kernel.
absl::Status AdamWStochastic(int64_t n, int64_t first, float* p, const float* g, BFloat16* m,
                             BFloat16* v, BFloat16* out, const kernels::AdamWStepScalars* scalars,
                             const kernels::PhiloxStream* random, CudaStream stream) {
  return Queue(stream, [=] {
    const auto set = [](uint32_t word) { return word; };
    for (int64_t i = 0; i < n && scalars->skip == 0; ++i) {
      const int64_t element = first + i;
      const auto words = kernels::PhiloxRun(*random, element / kernels::kPhiloxRun,
                                            static_cast<uint32_t>(element % 16), set);
      const uint32_t bits = words.word[element / 16 % 4];
      const auto next = kernels::AdamWElement(
          kernels::AdamWState<float>{p[i], ToFloat(m[i]), ToFloat(v[i])}, g[i], *scalars, kSet);
      p[i] = next.p;
      m[i] = ToBFloat16(kernels::RoundStochastic(next.m, bits & 0xffffU, set));
      v[i] = ToBFloat16(kernels::RoundStochastic(next.v, bits >> 16, set));
      if (out != nullptr) {
        out[i] = ToBFloat16(next.p);
      }
    }
  });
}

template <class Rule, class Scalars>
absl::Status OneStateKernel(int64_t n, float* p, const float* g, kernels::MutableFlat state,
                            BFloat16* out, const Scalars* scalars, CudaStream stream) {
  return Queue(stream, [=] {
    for (int64_t i = 0; i < n && scalars->skip == 0; ++i) {
      const auto next =
          Rule::Element(kernels::OneState<float>{p[i], Load(state, i)}, g[i], *scalars, kSet);
      p[i] = next.p;
      Store(next.s, state, i);
      if (out != nullptr) {
        out[i] = ToBFloat16(next.p);
      }
    }
  });
}

absl::Status Sgd(int64_t n, float* p, const float* g, kernels::MutableFlat momentum, BFloat16* out,
                 const kernels::SgdStepScalars* scalars, CudaStream stream) {
  if (momentum.data != nullptr) {
    return OneStateKernel<kernels::SgdRule>(n, p, g, momentum, out, scalars, stream);
  }
  return Queue(stream, [=] {
    for (int64_t i = 0; i < n && scalars->skip == 0; ++i) {
      p[i] = kernels::PlainSgdElement(p[i], g[i], *scalars, kSet);
      if (out != nullptr) {
        out[i] = ToBFloat16(p[i]);
      }
    }
  });
}

absl::Status LambMoments(int64_t n, int64_t offset, const float* p, const float* g, float* m,
                         float* v, kernels::LambSums* sums, const kernels::LambStepScalars* scalars,
                         CudaStream stream) {
  return Queue(stream, [=] {
    for (int64_t i = 0; i < n && scalars->skip == 0; ++i) {
      const auto next = kernels::LambMomentsElement(kernels::LambMoments<float>{m[i], v[i]}, g[i],
                                                    *scalars, kSet);
      const double weight = p[i];
      const double update = kernels::LambUpdate(p[i], next, *scalars, kSet);
      m[i] = next.m;
      v[i] = next.v;
      const int64_t block = (offset + i) / kernels::kNormBlock - offset / kernels::kNormBlock;
      if (i == 0 || (offset + i) % kernels::kNormBlock == 0) {
        sums[block] = {};  // Stored, not added: as the kernel.
      }
      sums[block].weights += weight * weight;
      sums[block].updates += update * update;
    }
  });
}

absl::Status LambTrust(const kernels::LambSums* sums, int64_t count,
                       const kernels::LambStepScalars* scalars, float* trust_step,
                       CudaStream stream) {
  return Queue(stream, [=] {
    kernels::LambSums sum;
    for (int64_t i = 0; i < count; ++i) {
      sum.weights += sums[i].weights;
      sum.updates += sums[i].updates;
    }
    *trust_step = static_cast<float>(
        scalars->step_size * kernels::LambTrustOf(sum, scalars->min_coeff, scalars->max_coeff));
  });
}

absl::Status LambApply(int64_t n, float* p, const float* m, const float* v, BFloat16* out,
                       const float* trust_step, const kernels::LambStepScalars* scalars,
                       CudaStream stream) {
  return Queue(stream, [=] {
    for (int64_t i = 0; i < n && scalars->skip == 0; ++i) {
      p[i] -= *trust_step *
              kernels::LambUpdate(p[i], kernels::LambMoments<float>{m[i], v[i]}, *scalars, kSet);
      if (out != nullptr) {
        out[i] = ToBFloat16(p[i]);
      }
    }
  });
}

absl::Status MuonDirection(int64_t n, const float* g, float* s, float* direction,
                           const kernels::MuonStepScalars* scalars, CudaStream stream) {
  return Queue(stream, [=] {
    for (int64_t i = 0; i < n && scalars->skip == 0; ++i) {
      const auto next = kernels::MuonDirectionElement(s[i], g[i], *scalars, kSet);
      s[i] = next.s;
      direction[i] = next.p;
    }
  });
}

absl::Status MuonApply(int64_t n, float* p, const float* direction, BFloat16* out, double scale,
                       const kernels::MuonStepScalars* scalars, CudaStream stream) {
  return Queue(stream, [=] {
    const auto along = static_cast<float>(scalars->lr * scale);
    for (int64_t i = 0; i < n && scalars->skip == 0; ++i) {
      p[i] = kernels::MuonApplyElement(p[i], direction[i], along, scalars->decay, kSet);
      if (out != nullptr) {
        out[i] = ToBFloat16(p[i]);
      }
    }
  });
}

absl::Status BlockSquareSums(const float* x, int64_t offset, int64_t n, double* sums,
                             CudaStream stream) {
  return Queue(stream, [=] { kernels::BlockSquareSumsCpu(x, offset, n, sums, Inline); });
}

absl::Status TreeSum(double* sums, int64_t count, double* sum, CudaStream stream) {
  return Queue(stream, [=] { *sum = kernels::TreeSum(sums, count); });
}

absl::Status StepVerdict(const kernels::StepTally* tallies, int ranks, bool of_shards,
                         const kernels::StepInputs* inputs, kernels::StepScalarsView scalars,
                         kernels::StepVerdictNumbers* verdict, CudaStream stream) {
  return Queue(stream, [=] {
    *verdict = kernels::StepVerdictOf(tallies, ranks, of_shards, *inputs);
    for (int i = 0; i < scalars.count; ++i) {
      kernels::SetStepScalars(*verdict, *inputs, scalars, i);
    }
  });
}

absl::Status Copy(int64_t n, kernels::ConstFlat from, kernels::MutableFlat to, CudaStream stream) {
  return Queue(stream, [=] { kernels::CopyCpu(n, from, to, Inline); });
}

absl::Status Accumulate(int64_t n, kernels::ConstFlat from, kernels::MutableFlat to,
                        CudaStream stream) {
  return Queue(stream, [=] { kernels::AccumulateCpu(n, from, to, Inline); });
}

absl::Status RoundToBf16(int64_t n, const float* src, float* rounded, BFloat16* kept,
                         CudaStream stream) {
  return Queue(stream, [=] { kernels::RoundToBf16Cpu(n, src, rounded, kept, Inline); });
}

}  // namespace

absl::Status QueueFakeKernel(CudaStream stream, std::function<void()> operation) {
  return Queue(stream, std::move(operation));
}

int FakeKernelLaunches() { return launches; }

bool FakeKernelsAreEmulated() { return emulated; }

const kernels::CudaKernelTable* FakeKernelTable(comm::FakeCuda* cuda) {
  the_cuda = cuda;
  static const kernels::CudaKernelTable table = [] {
    kernels::CudaKernelTable made{};
    made.adamw = AdamWFp32;
    made.adamw_bf16_state = AdamWBf16;
    made.adamw_stochastic = AdamWStochastic;
    made.sgd = Sgd;
    made.lion = OneStateKernel<kernels::LionRule, kernels::LionStepScalars>;
    made.adagrad = OneStateKernel<kernels::AdagradRule, kernels::AdagradStepScalars>;
    made.lamb_moments = LambMoments;
    made.lamb_trust = LambTrust;
    made.lamb_apply = LambApply;
    made.muon_direction = MuonDirection;
    made.muon_apply = MuonApply;
    made.block_square_sums = BlockSquareSums;
    made.tree_sum = TreeSum;
    made.step_verdict = StepVerdict;
    made.copy = Copy;
    made.accumulate = Accumulate;
    made.round_to_bf16 = RoundToBf16;
    AddFakeOperationKernels(made);
    emulated = PutEmulatedKernels(made);
    return made;
  }();
  return &table;
}

FakeGpu::FakeGpu(comm::FakeFabric* fabric, comm::FakeNcclFaults faults)
    : nccl(fabric, &cuda, faults) {
  cuda.SlowDown(std::chrono::microseconds(100));
}

absl::Status FakeGpu::Attach(Job::State& state, bool staged, comm::GroupOptions group) {
  CudaParts parts;
  parts.api = &cuda;
  parts.kernels = FakeKernelTable(&cuda);
  parts.compute_stream = cuda.host_stream();
  parts.tensors = at::Device(at::kCPU);
  parts.new_graph = [this]() -> absl::StatusOr<std::unique_ptr<TensorGraph>> {
    DT_RETURN_IF_ERROR(graphs);
    return std::make_unique<FakeTensorGraph>(&cuda, &pool);
  };
  parts.empty_cache = [this] { pool.emptied_at = cuda.queued(); };
  state.device = std::make_unique<Device>(parts);
  group.name = "device";
  group.deterministic = state.config->deterministic();
  if (staged) {
    DT_ASSIGN_OR_RETURN(auto host, comm::CreateHostGroup(state.store, group));
    comm::StagedGroupOptions options;
    options.cuda = &cuda;
    options.compute_stream = cuda.host_stream();
    DT_ASSIGN_OR_RETURN(state.device_group, comm::StagedGroup::Create(std::move(host), options));
    return absl::OkStatus();
  }
  comm::NcclGroupOptions options;
  options.group = group;
  options.compute_stream = cuda.host_stream();
  comm::NcclSeams seams;
  seams.nccl = &nccl;
  seams.cuda = &cuda;
  seams.kernels = comm::MakeFakeKernels(&cuda);
  DT_ASSIGN_OR_RETURN(state.device_group, comm::NcclGroup::Create(seams, state.store, options));
  return absl::OkStatus();
}

}  // namespace dtrain::testing
