// The collectives of NcclGroup: what each checks and puts on the stream.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/call.h"
#include "comm/nccl/nccl_call.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {
namespace {

std::string Describe(absl::string_view kind, const Buffer& buffer, absl::string_view detail,
                     const CollectiveOptions& options) {
  std::string text = absl::StrCat(kind, " of ", buffer.count(), " ", DTypeName(buffer.dtype));
  if (!detail.empty()) {
    absl::StrAppend(&text, " (", detail, ")");
  }
  if (!options.name.empty()) {
    absl::StrAppend(&text, " \"", options.name, "\"");
  }
  return text;
}

// Whether the call is a sum of fp32 with 16 bits on the wire. Maxima and minima travel as they are,
// because rounding would keep their order and not their values.
bool IsNarrow(const Buffer& buffer, ReduceOp op, Wire wire) {
  return wire != Wire::kSameAsBuffer && buffer.dtype == DType::kFloat32 &&
         (op == ReduceOp::kSum || op == ReduceOp::kAverage);
}

FlightCall Flight(CallKind kind, const Buffer& input, const Buffer& output,
                  const CollectiveOptions& options, ReduceOp op = ReduceOp::kSum) {
  FlightCall flight;
  flight.header.kind = kind;
  flight.header.bytes = std::max(input.bytes, output.bytes);
  flight.header.dtype = input.dtype;
  flight.header.op = op;
  flight.header.wire = IsNarrow(input, op, options.wire) ? options.wire : Wire::kSameAsBuffer;
  flight.header.sum_of_squares = options.sum_of_squares != nullptr;
  SetName(flight.header, options.name);
  flight.input_bytes = input.bytes;
  flight.output_bytes = output.bytes;
  return flight;
}

}  // namespace

absl::Status NcclGroup::CheckBuffer(absl::string_view what, const Buffer& buffer) const {
  if (buffer.device.kind != DeviceKind::kCuda || buffer.device.index != options_.device) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: the buffer is on %s %d; allowed: CUDA device %d", label_, what,
        buffer.device.kind == DeviceKind::kCuda ? "CUDA device" : "host memory, index",
        buffer.device.index, options_.device));
  }
  if (buffer.bytes % DTypeBytes(buffer.dtype) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s: %d bytes are not a multiple of %s's %d", label_, what,
                        buffer.bytes, DTypeName(buffer.dtype), DTypeBytes(buffer.dtype)));
  }
  return absl::OkStatus();
}

absl::Status NcclGroup::CheckReduction(absl::string_view what, const Buffer& buffer, ReduceOp op,
                                       const CollectiveOptions& options) const {
  DT_RETURN_IF_ERROR(CheckBuffer(what, buffer));
  if (op == ReduceOp::kAverage && !IsFloating(buffer.dtype)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: average of %s; allowed: floating types", label_, what, DTypeName(buffer.dtype)));
  }
  const bool itself = (options.wire == Wire::kBFloat16 && buffer.dtype == DType::kBFloat16) ||
                      (options.wire == Wire::kFloat16 && buffer.dtype == DType::kFloat16);
  if (options.wire != Wire::kSameAsBuffer && buffer.dtype != DType::kFloat32 && !itself) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: %s on the wire is for fp32 buffers: leave CollectiveOptions::wire alone", label_,
        what, WireName(options.wire)));
  }
  if (options.sum_of_squares != nullptr &&
      (!IsFloating(buffer.dtype) || buffer.dtype == DType::kFloat64)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s: sum of squares of %s; allowed: fp32, bf16, fp16", label_, what,
                        DTypeName(buffer.dtype)));
  }
  return absl::OkStatus();
}

absl::Status NcclGroup::CheckParts(absl::string_view what, const Buffer& part,
                                   const Buffer& whole) const {
  DT_RETURN_IF_ERROR(CheckBuffer(what, part));
  DT_RETURN_IF_ERROR(CheckBuffer(what, whole));
  if (part.dtype != whole.dtype || part.bytes * static_cast<size_t>(size()) != whole.bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: a part of %d bytes %s and a whole of %d bytes %s; the whole must be %d parts of "
        "the same type",
        label_, what, part.bytes, DTypeName(part.dtype), whole.bytes, DTypeName(whole.dtype),
        size()));
  }
  return absl::OkStatus();
}

absl::Status NcclGroup::CheckPeer(absl::string_view what, int peer) const {
  if (peer < 0 || peer >= size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s: rank %d; allowed: 0 to %d", label_, what, peer, size() - 1));
  }
  return absl::OkStatus();
}

absl::Status NcclGroup::CallNccl(absl::string_view what, DType dtype,
                                 absl::FunctionRef<NcclResult(NcclApi&, NcclComm*, NcclDType)> call,
                                 Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const NcclDType type, ToNcclDType(dtype));
  return communicator_->Call(
      what, [&](NcclApi& nccl, NcclComm* comm) { return call(nccl, comm, type); }, deadline);
}

absl::Status NcclGroup::CallNccl(
    absl::string_view what, DType dtype, ReduceOp op,
    absl::FunctionRef<NcclResult(NcclApi&, NcclComm*, NcclDType, NcclReduceOp)> call,
    Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const NcclDType type, ToNcclDType(dtype));
  DT_ASSIGN_OR_RETURN(const NcclReduceOp reduction,
                      communicator_->ReduceOperator(op, dtype, deadline));
  return communicator_->Call(
      what, [&](NcclApi& nccl, NcclComm* comm) { return call(nccl, comm, type, reduction); },
      deadline);
}

absl::StatusOr<Work> NcclGroup::AllReduce(Buffer buffer, ReduceOp op,
                                          const CollectiveOptions& options) {
  Call call;
  call.what = Describe("all_reduce", buffer, ReduceOpName(op), options);
  call.flight = Flight(CallKind::kAllReduce, buffer, buffer, options, op);
  DT_RETURN_IF_ERROR(CheckReduction(call.what, buffer, op, options));
  call.result = buffer;
  call.sum_of_squares = options.sum_of_squares;
  call.queue = [=, this](Deadline deadline) -> absl::Status {
    if (IsNarrow(buffer, op, options.wire)) {
      return NarrowAllReduce(buffer, op, options.wire, deadline);
    }
    if (InOrder(buffer, op)) {
      return OrderedAllReduce(buffer, op, deadline);
    }
    return CallNccl(
        "ncclAllReduce", buffer.dtype, op,
        [&](NcclApi& nccl, NcclComm* comm, NcclDType dtype, NcclReduceOp reduction) {
          return nccl.AllReduce(buffer.data, buffer.data, buffer.count(), dtype, reduction, comm,
                                stream_);
        },
        deadline);
  };
  return Start(call, options);
}

absl::StatusOr<NcclGroup::Call> NcclGroup::MakeReduceScatter(const Buffer& input,
                                                             const Buffer& output, ReduceOp op,
                                                             const CollectiveOptions& options) {
  Call call;
  call.what = Describe("reduce_scatter", input, ReduceOpName(op), options);
  call.flight = Flight(CallKind::kReduceScatter, input, output, options, op);
  DT_RETURN_IF_ERROR(CheckReduction(call.what, input, op, options));
  DT_RETURN_IF_ERROR(CheckParts(call.what, output, input));
  call.result = output;
  call.result_is_part = true;
  call.sum_of_squares = options.sum_of_squares;
  call.queue = [=, this](Deadline deadline) -> absl::Status {
    if (IsNarrow(input, op, options.wire)) {
      return NarrowReduceScatter(input, output, op, options.wire, deadline);
    }
    if (InOrder(input, op)) {
      return OrderedReduceScatter(input, output, op, deadline);
    }
    return CallNccl(
        "ncclReduceScatter", input.dtype, op,
        [&](NcclApi& nccl, NcclComm* comm, NcclDType dtype, NcclReduceOp reduction) {
          return nccl.ReduceScatter(input.data, output.data, output.count(), dtype, reduction, comm,
                                    stream_);
        },
        deadline);
  };
  return call;
}

bool NcclGroup::IsPlain(const ReduceScatterCall& call, ReduceOp op) const {
  return !IsNarrow(call.input, op, call.options.wire) && !InOrder(call.input, op) &&
         call.options.sum_of_squares == nullptr;
}

absl::StatusOr<Work> NcclGroup::ReduceScatter(Buffer input, Buffer output, ReduceOp op,
                                              const CollectiveOptions& options) {
  DT_ASSIGN_OR_RETURN(const Call call, MakeReduceScatter(input, output, op, options));
  return Start(call, options);
}

absl::StatusOr<Work> NcclGroup::AllGather(Buffer input, Buffer output,
                                          const CollectiveOptions& options) {
  Call call;
  call.what = Describe("all_gather", output, "", options);
  call.flight = Flight(CallKind::kAllGather, input, output, options);
  DT_RETURN_IF_ERROR(CheckParts(call.what, input, output));
  call.queue = [=, this](Deadline deadline) -> absl::Status {
    return CallNccl(
        "ncclAllGather", input.dtype,
        [&](NcclApi& nccl, NcclComm* comm, NcclDType dtype) {
          return nccl.AllGather(input.data, output.data, input.count(), dtype, comm, stream_);
        },
        deadline);
  };
  return Start(call, options);
}

absl::StatusOr<Work> NcclGroup::Broadcast(Buffer buffer, int root,
                                          const CollectiveOptions& options) {
  Call call;
  call.what = Describe("broadcast", buffer, absl::StrCat("from ", root), options);
  call.flight = Flight(CallKind::kBroadcast, buffer, buffer, options);
  call.flight.header.root = root;
  DT_RETURN_IF_ERROR(CheckBuffer(call.what, buffer));
  DT_RETURN_IF_ERROR(CheckPeer(call.what, root));
  call.queue = [=, this](Deadline deadline) -> absl::Status {
    return CallNccl(
        "ncclBroadcast", buffer.dtype,
        [&](NcclApi& nccl, NcclComm* comm, NcclDType dtype) {
          return nccl.Broadcast(buffer.data, buffer.data, buffer.count(), dtype, root, comm,
                                stream_);
        },
        deadline);
  };
  return Start(call, options);
}

absl::StatusOr<Work> NcclGroup::AllToAll(Buffer input, Buffer output,
                                         const CollectiveOptions& options) {
  Call call;
  call.what = Describe("all_to_all", input, "", options);
  call.flight = Flight(CallKind::kAllToAll, input, output, options);
  DT_RETURN_IF_ERROR(CheckBuffer(call.what, input));
  DT_RETURN_IF_ERROR(CheckBuffer(call.what, output));
  if (input.bytes != output.bytes || input.dtype != output.dtype ||
      input.count() % static_cast<size_t>(size()) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: input %d bytes, output %d bytes; allowed: equal, the same type, and a multiple of "
        "%d ranks",
        label_, call.what, input.bytes, output.bytes, size()));
  }
  call.queue = [=, this](Deadline deadline) {
    return ExchangeParts(static_cast<char*>(input.data), static_cast<char*>(output.data),
                         input.count() / static_cast<size_t>(size()), input.dtype, deadline);
  };
  return Start(call, options);
}

absl::StatusOr<Work> NcclGroup::Send(Buffer buffer, int peer, const CollectiveOptions& options) {
  Call call;
  call.what = Describe("send", buffer, absl::StrCat("to ", peer), options);
  call.flight = Flight(CallKind::kSend, buffer, buffer, options);
  call.peer = peer;
  DT_RETURN_IF_ERROR(CheckBuffer(call.what, buffer));
  DT_RETURN_IF_ERROR(CheckPeer(call.what, peer));
  call.queue = [=, this](Deadline deadline) -> absl::Status {
    return CallNccl(
        "ncclSend", buffer.dtype,
        [&](NcclApi& nccl, NcclComm* comm, NcclDType dtype) {
          return nccl.Send(buffer.data, buffer.count(), dtype, peer, comm, stream_);
        },
        deadline);
  };
  return Start(call, options);
}

absl::StatusOr<Work> NcclGroup::Receive(Buffer buffer, int peer, const CollectiveOptions& options) {
  Call call;
  call.what = Describe("receive", buffer, absl::StrCat("from ", peer), options);
  call.flight = Flight(CallKind::kReceive, buffer, buffer, options);
  call.peer = peer;
  DT_RETURN_IF_ERROR(CheckBuffer(call.what, buffer));
  DT_RETURN_IF_ERROR(CheckPeer(call.what, peer));
  call.queue = [=, this](Deadline deadline) -> absl::Status {
    return CallNccl(
        "ncclRecv", buffer.dtype,
        [&](NcclApi& nccl, NcclComm* comm, NcclDType dtype) {
          return nccl.Recv(buffer.data, buffer.count(), dtype, peer, comm, stream_);
        },
        deadline);
  };
  return Start(call, options);
}

absl::Status NcclGroup::Barrier(Deadline deadline) {
  // The value of this number on the device does not matter.
  Buffer one;
  one.data = scratch_->kernel_scratch();
  one.bytes = sizeof(int32_t);
  one.dtype = DType::kInt32;
  one.device = {DeviceKind::kCuda, options_.device};
  CollectiveOptions options;
  options.name = "barrier";
  DT_ASSIGN_OR_RETURN(const Work work, AllReduce(one, ReduceOp::kMax, options));
  return work.Wait(deadline);
}

}  // namespace dtrain::comm
