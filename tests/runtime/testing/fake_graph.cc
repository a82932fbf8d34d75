#include "tests/runtime/testing/fake_graph.h"

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/record_function.h"
#include "base/status.h"
#include "comm/nccl/nccl_status.h"
#include "torch/library.h"

namespace dtrain::testing {
namespace {

using torch::jit::Stack;

// Below autograd and above every backend, and of no other use.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

comm::FakeCuda* capturing = nullptr;

void ForEachTensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor() && value.toTensor().defined()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toList()) {
      ForEachTensor(element, visit);
    }
  }
}

std::vector<at::Tensor> TensorsOf(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    ForEachTensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  }
  return tensors;
}

// The outputs of an operation that are no views of its inputs.
std::vector<at::Tensor> Fresh(const std::vector<c10::IValue>& inputs,
                              const std::vector<c10::IValue>& outputs) {
  std::set<const void*> taken;
  for (const at::Tensor& tensor : TensorsOf(inputs)) {
    taken.insert(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  }
  std::vector<at::Tensor> fresh;
  for (const at::Tensor& tensor : TensorsOf(outputs)) {
    if (taken.count(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()) == 0) {
      fresh.push_back(tensor);
    }
  }
  return fresh;
}

bool Waits(const std::string& name) {
  static const std::set<std::string> waiting = {"aten::_local_scalar_dense", "aten::item",
                                                "aten::is_nonzero", "aten::nonzero", "aten::equal"};
  return waiting.count(name) > 0;
}

bool Writes(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

// Runs the operation below autograd, and unseen by whoever counts operations of the host.
void RunAgain(const c10::OperatorHandle& op, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::DisableRecordFunctionGuard unseen;
  op.callBoxed(stack);
}

// An operation that writes to its arguments gives those that it wrote to, in order.
void GiveWritten(const c10::OperatorHandle& op, const std::vector<c10::IValue>& inputs,
                 Stack* stack) {
  const auto& schema = op.schema();
  for (const c10::Argument& given : schema.returns()) {
    TORCH_CHECK(given.alias_info() != nullptr, "the fake GPU does not capture ", schema.name());
  }
  torch::jit::drop(*stack, inputs.size());
  size_t returns = schema.returns().size();
  for (size_t i = 0; i < inputs.size() && returns > 0; ++i) {
    const auto* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      stack->push_back(inputs[i]);
      --returns;
    }
  }
}

void Record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard deaf(kKey);  // Operations inside it are not recorded.
  const std::string& name = op.schema().name();
  if (Waits(name)) {
    const comm::CudaResult forbidden = capturing->Forbid();
    TORCH_CHECK(false, "CUDA error: ", capturing->ErrorString(forbidden), " (", name, ")");
  }
  const size_t count = op.schema().arguments().size();
  const std::vector<c10::IValue> inputs = torch::jit::last(*stack, count).vec();
  comm::CudaStream* const stream = capturing->host_stream();
  if (Writes(op.schema())) {
    capturing->Enqueue(stream, [op, inputs] {
      Stack again = inputs;
      RunAgain(op, &again);
    });
    GiveWritten(op, inputs, stack);
    return;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  const std::vector<c10::IValue> outputs =
      torch::jit::last(*stack, op.schema().returns().size()).vec();
  const std::vector<at::Tensor> fresh = Fresh(inputs, outputs);
  for (const at::Tensor& tensor : fresh) {
    if (tensor.is_floating_point()) {
      tensor.fill_(std::nan(""));
    }
  }
  // Their memory stays with the graph; what holds nothing yet need not be made again.
  const bool holds_nothing = name.rfind("aten::empty", 0) == 0 || name == "aten::new_empty";
  capturing->Enqueue(stream, [op, inputs, fresh, holds_nothing] {
    if (fresh.empty() || holds_nothing) {
      return;
    }
    Stack again = inputs;
    RunAgain(op, &again);
    const std::vector<at::Tensor> made = Fresh(inputs, again);
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::DisableRecordFunctionGuard unseen;
    for (size_t i = 0; i < made.size(); ++i) {
      fresh[i].copy_(made[i]);
    }
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Record>());
}

absl::Status FakeTensorGraph::Check(comm::CudaResult result, const char* what) const {
  return comm::CudaStatus(*cuda_, result, what);
}

FakeTensorGraph::~FakeTensorGraph() {
  if (listening_.has_value()) {
    End().IgnoreError();
  }
  if (graph_ != nullptr) {
    (void)cuda_->GraphDestroy(graph_);
  }
}

absl::Status FakeTensorGraph::Begin() {
  out_of_memory_ = pool_->fits_one_pass && cuda_->queued() != pool_->emptied_at;
  const absl::Status begun =
      Check(cuda_->StreamBeginCapture(cuda_->host_stream()), "the begin of a capture");
  if (begun.ok()) {
    rng_.emplace();
    capturing = cuda_;
    listening_.emplace(kKey);
  }
  return begun;
}

absl::Status FakeTensorGraph::End() {
  listening_.reset();
  capturing = nullptr;
  rng_->Restore();
  DT_RETURN_IF_ERROR(
      Check(cuda_->StreamEndCapture(cuda_->host_stream(), &graph_), "the end of a capture"));
  return out_of_memory_ ? absl::ResourceExhaustedError("CUDA out of memory while it was captured")
                        : absl::OkStatus();
}

absl::Status FakeTensorGraph::Launch() {
  return Check(cuda_->GraphLaunch(graph_, cuda_->host_stream()), "the launch of a graph");
}

}  // namespace dtrain::testing
