#include "tests/runtime/testing/emulated_kernels.h"

#include <tuple>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "tests/device_emulation/device.h"
#include "tests/runtime/testing/fake_op_kernels.h"

extern "C" const void* dtrain_cuda_kernel_table();

namespace dtrain::testing {
namespace {

using Table = kernels::CudaKernelTable;

// An entry of the table as an operation of a fake stream, which runs the emulated device's.
template <auto kEntry>
struct OnStream;
template <class... Args, absl::Status (*Table::*kEntry)(Args...)>
struct OnStream<kEntry> {
  static absl::Status Launch(Args... args) {
    const std::tuple<std::decay_t<Args>...> copies(args...);
    const CudaStream stream = std::get<sizeof...(Args) - 1>(copies);
    return QueueFakeKernel(stream, [copies] {
      const Table& launched = *kernels::AsCudaKernelTable(dtrain_cuda_kernel_table());
      DT_CHECK_OK(std::apply(launched.*kEntry, copies));
    });
  }
};

template <auto... kEntries>
void Put(Table& table) {
  ((table.*kEntries = OnStream<kEntries>::Launch), ...);
}

}  // namespace

// An entry that is added to the table is to be added below, and counted: functions, and two that
// stay the fake's, create_matmul and check_device_image.
static_assert(sizeof(Table) == 53 * sizeof(void*));

bool PutEmulatedKernels(kernels::CudaKernelTable& table) {
  Put<&Table::adamw, &Table::adamw_bf16_state, &Table::adamw_stochastic, &Table::sgd, &Table::lion,
      &Table::adagrad, &Table::lamb_moments, &Table::lamb_trust, &Table::lamb_apply,
      &Table::muon_direction, &Table::muon_apply, &Table::block_square_sums, &Table::tree_sum,
      &Table::step_verdict, &Table::copy, &Table::scale, &Table::accumulate, &Table::round_to_bf16,
      &Table::fill>(table);
  Put<&Table::rmsnorm_forward, &Table::rmsnorm_forward_bf16, &Table::rmsnorm_backward,
      &Table::rmsnorm_backward_bf16, &Table::layernorm_forward, &Table::layernorm_forward_bf16,
      &Table::layernorm_backward, &Table::layernorm_backward_bf16, &Table::activation_forward,
      &Table::activation_forward_bf16, &Table::activation_backward,
      &Table::activation_backward_bf16, &Table::gated_forward, &Table::gated_forward_bf16,
      &Table::gated_backward, &Table::gated_backward_bf16, &Table::rope, &Table::rope_bf16,
      &Table::cross_entropy_forward, &Table::cross_entropy_forward_bf16,
      &Table::cross_entropy_totals>(table);
  Put<&Table::quantize_int8, &Table::dequantize_int8, &Table::cast_to_fp8, &Table::transpose_to_fp8,
      &Table::fp8_scale, &Table::rows_to_fp8, &Table::dropout_stream, &Table::dropout_stream_bf16,
      &Table::embedding_backward, &Table::embedding_backward_bf16>(table);
  table.embedding_workspace_bytes = kernels::EmbeddingWorkspaceBytesCuda;
  return true;
}

int64_t EmulatedLaunches() { return emulation::Launches(); }

}  // namespace dtrain::testing
