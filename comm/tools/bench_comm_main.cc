// dtrain-bench-comm: every collective between ranks of this host, in nccl-tests' columns.
//
// Time is the median over the iterations of the slowest rank's time of one call from a common
// barrier; algbw = size / time, busbw = algbw x the factor of nccl-tests' doc/PERFORMANCE.md. The
// last columns are busbw as a share of a limit measured in the same run: over shared memory the
// rate at which all ranks at once copy as many bytes of memory, otherwise the rate of one send
// between two ranks.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/provenance.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "comm/tools/bench_backends.h"
#include "comm/tools/bench_options.h"
#include "comm/tools/bench_report.h"
#include "comm/tools/local_ranks.h"

namespace dtrain::comm {
namespace {

// The largest value of all ranks, so that all continue with the same number.
absl::StatusOr<double> Slowest(Group& control, double value) {
  DT_ASSIGN_OR_RETURN(const Work work, control.AllReduce({&value, sizeof(value), DType::kFloat64},
                                                         ReduceOp::kMax, {.caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  return value;
}

// Median microseconds of `work` with buffers of `bytes`.
template <typename Function>
absl::StatusOr<double> Measure(Group& control, const BenchPlan& plan, size_t bytes, Function work) {
  std::vector<double> micros;
  const int warm_ups = BenchPlan::WarmUpsFor(bytes);
  for (int i = 0; i < plan.IterationsFor(bytes) + warm_ups; ++i) {
    DT_RETURN_IF_ERROR(control.Barrier(Deadline::Infinite()));
    const int64_t start = Clock::Real().MonotonicNanos();
    DT_RETURN_IF_ERROR(work());
    const auto own = static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-3;
    DT_ASSIGN_OR_RETURN(const double slowest, Slowest(control, own));
    if (i >= warm_ups) {
      micros.push_back(slowest);
    }
  }
  std::sort(micros.begin(), micros.end());
  return micros[micros.size() / 2];
}

// Rank 0 sends to rank 1; the others do nothing.
absl::Status SendOverOneLink(BenchBackend& backend, size_t bytes) {
  Group& group = *backend.group;
  const Buffer buffer{backend.memory->input(), bytes, DType::kFloat32, backend.memory->device()};
  if (group.rank() > 1) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const Work work,
                      group.rank() == 0 ? group.Send(buffer, 1) : group.Receive(buffer, 0));
  return backend.memory->Finish(work);
}

absl::Status CopyOnce(BenchBackend& backend, size_t bytes) {
  BenchMemory& memory = *backend.memory;
  return memory.CopyAndFinish(memory.output(), memory.input(), bytes);
}

// The rate in GB/s when `bytes` are moved at a time.
absl::StatusOr<double> RateOf(BenchBackend& backend, const BenchPlan& plan, size_t bytes) {
  DT_ASSIGN_OR_RETURN(const double micros, Measure(*backend.control, plan, bytes, [&] {
                        return backend.limit_is_link ? SendOverOneLink(backend, bytes)
                                                     : CopyOnce(backend, bytes);
                      }));
  return static_cast<double>(bytes) / micros * 1e-3;
}

// The limit that each size's collectives are compared with (see the top of this file). A copy is as
// fast as the cache that holds its size; a link has one rate, its best. A reduction of registered
// memory touches less memory than a copy of as many bytes and may pass 100 %.
absl::StatusOr<std::vector<double>> Limits(BenchBackend& backend, const BenchPlan& plan) {
  std::vector<double> limits;
  if (!backend.limit_is_link) {
    for (const size_t bytes : plan.Sizes()) {
      DT_ASSIGN_OR_RETURN(limits.emplace_back(), RateOf(backend, plan, bytes));
    }
    return limits;
  }
  // Limited so that it does not take long.
  const size_t largest = std::min(plan.BufferBytes(), size_t{64} << 20);
  double best = 0;
  for (size_t bytes = size_t{256} << 10; bytes <= largest; bytes *= 4) {
    DT_ASSIGN_OR_RETURN(const double rate, RateOf(backend, plan, bytes));
    best = std::max(best, rate);
  }
  limits.assign(plan.Sizes().size(), best);
  return limits;
}

absl::StatusOr<BenchTime> MeasureCase(BenchBackend& backend, const BenchPlan& plan,
                                      BenchCase& bench, BenchKind kind, double limit) {
  BenchTime time;
  DT_RETURN_IF_ERROR(bench.Fill());
  // All ranks' buffers are filled.
  DT_RETURN_IF_ERROR(backend.control->Barrier(Deadline::Infinite()));
  DT_RETURN_IF_ERROR(bench.Run());
  DT_ASSIGN_OR_RETURN(const size_t wrong, bench.Wrong());
  DT_ASSIGN_OR_RETURN(const double most, Slowest(*backend.control, static_cast<double>(wrong)));
  time.wrong = static_cast<size_t>(most);
  DT_RETURN_IF_ERROR(bench.Clear());
  DT_ASSIGN_OR_RETURN(time.micros,
                      Measure(*backend.control, plan, bench.bytes(), [&] { return bench.Run(); }));
  time.algbw = static_cast<double>(bench.bytes()) / time.micros * 1e-3;
  time.busbw = time.algbw * BusFactor(kind, plan.ranks);
  time.of_limit = time.busbw / limit;
  return time;
}

absl::StatusOr<BenchRow> MeasureRow(BenchBackend& backend, const BenchPlan& plan, BenchKind kind,
                                    size_t bytes, double limit) {
  BenchRow row{.kind = kind};
  BenchSetting setting{.kind = kind, .dtype = plan.dtype, .op = plan.op, .root = plan.root};
  BenchCase apart(setting, *backend.group, *backend.memory, bytes);
  row.bytes = apart.bytes();
  row.count = apart.count();
  DT_ASSIGN_OR_RETURN(row.out_of_place, MeasureCase(backend, plan, apart, kind, limit));
  if (WorksInPlace(kind)) {
    setting.in_place = true;
    BenchCase together(setting, *backend.group, *backend.memory, bytes);
    DT_ASSIGN_OR_RETURN(row.in_place, MeasureCase(backend, plan, together, kind, limit));
  }
  return row;
}

absl::Status CheckRight(const BenchRow& row, const BenchBackend& backend) {
  const size_t wrong = row.out_of_place.wrong + (row.in_place ? row.in_place->wrong : 0);
  return wrong == 0 ? absl::OkStatus()
                    : absl::InternalError(
                          absl::StrFormat("%s of %d bytes over %s: %d elements are wrong",
                                          BenchName(row.kind), row.bytes, backend.name, wrong));
}

bool CanDo(const BenchBackend& backend, BenchKind kind) {
  const bool sends = kind == BenchKind::kSendReceive;
  return !sends || (backend.name != "staged" && backend.group->size() > 1);
}

absl::Status MeasureBackend(BenchBackend& backend, const BenchPlan& plan, Json& rows) {
  DT_ASSIGN_OR_RETURN(const std::vector<double> limits, Limits(backend, plan));
  const std::vector<size_t> sizes = plan.Sizes();
  const bool speaks = backend.group->rank() == 0;
  for (const BenchKind kind : AllBenchKinds()) {
    if (!plan.Wants(kind) || !CanDo(backend, kind)) {
      continue;
    }
    if (speaks) {
      PrintHead(plan, backend, kind);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      DT_ASSIGN_OR_RETURN(const BenchRow row, MeasureRow(backend, plan, kind, sizes[i], limits[i]));
      if (speaks) {
        PrintRow(plan, row);
        rows.push_back(RowJson(plan, backend, row, limits[i]));
      }
      DT_RETURN_IF_ERROR(CheckRight(row, backend));
      if (kind == BenchKind::kBarrier) {
        break;  // A barrier has no size.
      }
    }
  }
  return backend.control->Barrier(Deadline::Infinite());
}

absl::Status RunRank(const GroupOptions& base, Store& store, const BenchPlan& plan,
                     const Json& provenance) {
  GroupOptions options = base;
  options.name = "control";
  DT_ASSIGN_OR_RETURN(std::shared_ptr<Group> control, CreateHostGroup(&store, options));
  Json rows = Json::array();
  for (const std::string& name : plan.backends) {
    DT_ASSIGN_OR_RETURN(BenchBackend backend, OpenBackend(name, plan, base, store, control));
    DT_RETURN_IF_ERROR(MeasureBackend(backend, plan, rows));
  }
  return base.rank == 0 && !plan.json.empty() ? WriteReport(plan, provenance, std::move(rows))
                                              : absl::OkStatus();
}

// Runs CheckBackends in a child process, because it may open CUDA.
absl::Status CheckBackendsApart(const BenchPlan& plan) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe2");
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    return ErrnoStatus(errno, "fork");
  }
  if (pid == 0) {
    const absl::Status status = CheckBackends(plan);
    const std::string text(status.message());
    static_cast<void>(WriteFully(write_end.get(), text.data(), text.size()));
    _exit(static_cast<int>(status.code()));
  }
  write_end.reset();
  std::string text;
  char piece[4096];
  for (ssize_t got = 0; (got = read(read_end.get(), piece, sizeof(piece))) > 0;) {
    text.append(piece, static_cast<size_t>(got));
  }
  int ended = 0;
  while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(ended) ? absl::Status(static_cast<absl::StatusCode>(WEXITSTATUS(ended)), text)
                          : absl::InternalError(
                                "the process that looks for GPUs and NICs was killed by a signal");
}

int Main(int argc, char** argv) {
  BenchPlan plan;
  if (const int code = ParseBenchOptions(argc, argv, plan); code >= 0) {
    return code;
  }
  absl::Status status = CheckPlan(plan);
  if (status.ok()) {
    status = CheckBackendsApart(plan);
  }
  if (status.ok()) {
    status = FitIntoMemory(ReadAvailableMemory(), plan);
  }
  if (status.ok()) {
    if (plan.left_out_above != 0) {
      std::fprintf(stderr,
                   "dtrain bench comm: leaving out sizes above %zu bytes, for which %d ranks "
                   "need more memory than is available\n",
                   plan.left_out_above, plan.ranks);
    }
    const Json provenance = Provenance();
    status = RunLocalRanks(plan.ranks, [&](const GroupOptions& options, Store& store) {
      return RunRank(options, store, plan, provenance);
    });
  }
  if (!status.ok()) {
    std::fprintf(stderr, "dtrain bench comm: %s\n", std::string(status.message()).c_str());
  }
  return ExitCodeFor(status);
}

}  // namespace
}  // namespace dtrain::comm

int main(int argc, char** argv) { return dtrain::comm::Main(argc, argv); }
