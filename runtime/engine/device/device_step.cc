#include "runtime/engine/device/device_step.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/memory/tensor_over.h"

namespace dtrain {
namespace {

using kernels::StepInputs;
using kernels::StepTally;
using kernels::StepVerdictNumbers;

constexpr size_t kAlign = 256;  // Aligns the parts of the device memory like cudaMalloc.

size_t RoundUp(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A tensor over part of `memory`, which it keeps alive.
at::Tensor ViewOf(const std::shared_ptr<DeviceMemory>& memory, void* data, at::ScalarType type,
                  at::Device device) {
  return at::from_blob(
      data, {1}, [memory](void*) {}, at::TensorOptions(type).device(device), device);
}

}  // namespace

// The numbers of one ended step. Knows its DeviceStep until they are here.
class DeviceStep::Pending final : public LateNumbers {
 public:
  Pending(DeviceStep* step, const DevicePhases* phases) : step_(step), phases_(phases) {}
  bool ready() const override { return step_ == nullptr || phases_->Done(); }
  const StepNumbers& Wait() override {
    if (step_ != nullptr) {
      step_->Settle(step_->deadline()).IgnoreError();  // The next step gives the error.
    }
    return numbers_;
  }
  void Resolve(const StepNumbers& numbers) {
    numbers_ = numbers;
    step_ = nullptr;
  }
  const DevicePhases& phases() const { return *phases_; }

 private:
  DeviceStep* step_;
  const DevicePhases* const phases_;
  StepNumbers numbers_;
};

DeviceStep::DeviceStep(const Device& device, comm::DeviceGroup& group,
                       std::unique_ptr<DeviceRule> rule, const DeviceStepOptions& options)
    : device_(device),
      group_(group),
      watched_{&group},
      rule_(std::move(rule)),
      settings_(rule_ != nullptr ? options.settings : 0),
      timeout_(options.timeout) {
  for (auto& phases : phases_) {
    phases = std::make_unique<DevicePhases>(device);
  }
}

absl::StatusOr<std::unique_ptr<DeviceStep>> DeviceStep::Create(const Device& device,
                                                               comm::DeviceGroup& group,
                                                               std::unique_ptr<DeviceRule> rule,
                                                               const DeviceStepOptions& options) {
  std::unique_ptr<DeviceStep> made(new DeviceStep(device, group, std::move(rule), options));
  DT_RETURN_IF_ERROR(made->Allocate());
  return made;
}

DeviceStep::~DeviceStep() {
  if (pending_ == nullptr) {
    return;
  }
  if (const absl::Status settled = Settle(deadline()); !settled.ok()) {
    // No step follows that would give it.
    DT_LOG(Warning) << "the numbers of the last step never came: " << settled.message();
  }
}

size_t DeviceStep::upload_bytes() const {
  return sizeof(StepInputs) + (rule_ != nullptr ? settings_ * rule_->scalar_bytes() : 0);
}
std::byte* DeviceStep::scalars() const {
  return static_cast<std::byte*>(memory_->data()) + sizeof(StepInputs);
}
StepTally* DeviceStep::tallies() const {
  return reinterpret_cast<StepTally*>(static_cast<std::byte*>(memory_->data()) +
                                      RoundUp(upload_bytes()));
}
StepTally* DeviceStep::own_tally() const { return tallies() + group_.rank(); }
StepVerdictNumbers* DeviceStep::verdict() const {
  const size_t all = RoundUp(static_cast<size_t>(group_.size()) * sizeof(StepTally));
  return reinterpret_cast<StepVerdictNumbers*>(reinterpret_cast<std::byte*>(tallies()) + all);
}

absl::Status DeviceStep::Allocate() {
  const size_t bytes = RoundUp(upload_bytes()) +
                       RoundUp(static_cast<size_t>(group_.size()) * sizeof(StepTally)) +
                       sizeof(StepVerdictNumbers);
  DT_ASSIGN_OR_RETURN(memory_, DeviceMemory::Create(device_, bytes, "a step's numbers"));
  if (rule_ != nullptr) {
    DT_RETURN_IF_ERROR(rule_->Allocate(device_, group_.size()));
  }
  const size_t tallies = static_cast<size_t>(group_.size()) * sizeof(StepTally);
  DT_ASSIGN_OR_RETURN(upload_, PinnedMemory::Create(device_, RoundUp(upload_bytes()) + tallies));
  DT_ASSIGN_OR_RETURN(landed_, PinnedMemory::Create(device_, sizeof(StepVerdictNumbers)));
  loss_sum_ = ViewOf(memory_, &own_tally()->loss_sum, at::kDouble, device_.tensors());
  skip_flag_ = ViewOf(memory_, &verdict()->skip, at::kInt, device_.tensors());
  return absl::OkStatus();
}

absl::Status DeviceStep::Begin() {
  const at::NoGradGuard no_grad;
  // Those of the step before may still be read, and a step that failed began too.
  parity_ = pending_ != nullptr && &pending_->phases() == phases_[0].get() ? 1 : 0;
  phases().Clear();
  loss_sum_.zero_();
  return Mark(nullptr);
}

absl::Status DeviceStep::AddLoss(const at::Tensor& sum) {
  if (sum.device() != device_.tensors()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the loss is on %s and the model on %s: move the batch there "
                        "(Job::device), or set device to \"cpu\"",
                        sum.device().str(), device_.tensors().str()));
  }
  const at::NoGradGuard no_grad;
  loss_sum_.add_(sum.detach().to(at::kDouble).view({1}));
  return absl::OkStatus();
}

absl::Status DeviceStep::Decide(const StepPlan& plan) {
  DT_CHECK(pending_ == nullptr) << " the step before is not settled";
  plan_ = plan;
  DT_RETURN_IF_ERROR(Mark(&StepNumbers::exposed_comm_s));
  const size_t ranks = static_cast<size_t>(group_.size());
  DT_RETURN_IF_ERROR(
      group_
          .AllGather({own_tally(), sizeof(StepTally), DType::kFloat64, device_.place()},
                     {tallies(), ranks * sizeof(StepTally), DType::kFloat64, device_.place()},
                     {.name = "loss and gradient norm"})
          .status());
  WriteInputs(plan);
  DT_RETURN_IF_ERROR(device_.Copy(memory_->data(), upload_->data(), upload_bytes()));
  DT_RETURN_IF_ERROR(group_.JoinStream(device_.stream()));
  return Mark(&StepNumbers::update_s);
}

// The device has passed the last upload: the step before is settled.
void DeviceStep::WriteInputs(const StepPlan& plan) const {
  auto* const inputs = static_cast<std::byte*>(upload_->data());
  const StepInputs numbers{.unscale = plan.to_mean, .norm_max = plan.norm_max};
  std::memcpy(inputs, &numbers, sizeof(numbers));
  for (size_t i = 0; i < settings_; ++i) {
    rule_->Scalars(plan.update, plan.update.settings[i],
                   inputs + sizeof(StepInputs) + i * rule_->scalar_bytes());
  }
}

absl::Status DeviceStep::DecideAgain(const StepPlan& plan, const StepTally& total) {
  DT_CHECK(pending_ == nullptr) << " the step before is not settled";
  DT_CHECK(!plan.squares_of_shard) << " the squares are of all ranks";
  plan_ = plan;
  DT_RETURN_IF_ERROR(Mark(&StepNumbers::update_s));
  WriteInputs(plan);
  const auto ranks = static_cast<size_t>(group_.size());
  const size_t before = RoundUp(upload_bytes());
  std::byte* const tallies = static_cast<std::byte*>(upload_->data()) + before;
  for (size_t rank = 0; rank < ranks; ++rank) {  // Losses are summed, squares are equal.
    const StepTally tally{rank == 0 ? total.loss_sum : 0, total.sum_of_squares};
    std::memcpy(tallies + rank * sizeof(tally), &tally, sizeof(tally));
  }
  return device_.Copy(memory_->data(), upload_->data(), before + ranks * sizeof(StepTally));
}

absl::Status DeviceStep::QueueVerdict() const {
  kernels::StepScalarsView view;  // Empty where the host updates.
  if (rule_ != nullptr) {
    view = {.data = scalars(),
            .count = static_cast<int32_t>(settings_),
            .stride = static_cast<int32_t>(rule_->scalar_bytes()),
            .skip_offset = static_cast<int32_t>(rule_->skip_offset())};
  }
  return device_.kernels().step_verdict(tallies(), group_.size(), plan_.squares_of_shard,
                                        static_cast<const StepInputs*>(memory_->data()), view,
                                        verdict(), device_.kernel_stream());
}

absl::Status DeviceStep::Prepare(const EngineState& state, const ReducedGradient& gradient,
                                 absl::Span<const std::vector<UpdatePiece>> pieces) {
  return rule_->Prepare({device_, group_, state, gradient, pieces, scalars()});
}

absl::Status DeviceStep::Update(const EngineState& state, const ReducedGradient& gradient,
                                absl::Span<const UpdatePiece> pieces) const {
  return UpdatePiecesOnDevice(*rule_, device_.kernels(), state, gradient, pieces, scalars(),
                              device_.kernel_stream());
}

absl::Status DeviceStep::QueueNumbers() const {
  return device_.Copy(landed_->data(), verdict(), sizeof(StepVerdictNumbers));
}

absl::Status DeviceStep::Passed(const DevicePhases& phases, Deadline deadline) const {
  const absl::Status status = phases.Wait(deadline);
  DT_RETURN_IF_ERROR(Health());  // It says more.
  return status;
}

// The device's results of a broken collective are worthless.
absl::Status DeviceStep::Health() const {
  for (const comm::DeviceGroup* const group : watched_) {
    DT_RETURN_IF_ERROR(group->Health());
  }
  return absl::OkStatus();
}

void DeviceStep::ReadVerdict(StepNumbers& numbers) const {
  StepVerdictNumbers landed;
  std::memcpy(&landed, landed_->data(), sizeof(landed));
  numbers.loss = plan_.count > 0 ? landed.loss_sum / static_cast<double>(plan_.count)
                                 : std::numeric_limits<double>::quiet_NaN();
  numbers.grad_norm = std::sqrt(landed.sum_of_squares) * plan_.to_mean;
  numbers.skipped = landed.skip != 0;
}

absl::StatusOr<StepNumbers> DeviceStep::AwaitVerdict(Deadline deadline) {
  DT_RETURN_IF_ERROR(Mark(&StepNumbers::update_s));
  DT_RETURN_IF_ERROR(Passed(phases(), deadline));
  StepNumbers numbers;
  ReadVerdict(numbers);
  return numbers;
}

absl::StatusOr<std::shared_ptr<LateNumbers>> DeviceStep::End() {
  DT_RETURN_IF_ERROR(Mark(nullptr));
  pending_ = std::make_shared<Pending>(this, &phases());
  return pending_;
}

absl::Status DeviceStep::Settle(Deadline deadline) {
  if (pending_ == nullptr) {
    return broken_;
  }
  const absl::Status status = Passed(pending_->phases(), deadline);
  StepNumbers numbers;
  if (status.ok()) {
    pending_->phases().Read(numbers);
    ReadVerdict(numbers);
  } else {
    numbers.loss = numbers.grad_norm = std::numeric_limits<double>::quiet_NaN();
  }
  std::exchange(pending_, nullptr)->Resolve(numbers);
  broken_.Update(status);
  return broken_;
}

}  // namespace dtrain
