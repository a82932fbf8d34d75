#include "checkpoint/restore/restore_agreement.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"
#include "checkpoint/restore/tensor_reads.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kReportSeen = 's';
constexpr char kReportDamaged = 'd';
constexpr char kReportUnreadable = 'p';
constexpr char kReportFailed = 'f';

absl::Status StrangeMessage(absl::string_view what, absl::string_view text) {
  return absl::InternalError(absl::StrCat("a rank sent the ", what, " \"", text.substr(0, 100),
                                          "\" of a restore: run one version of dtrain on all "
                                          "nodes"));
}

// This rank's share of the blocks that nobody has seen.
absl::Status ReadUnseen(Checkpoint& from, absl::string_view text, const Exchange& exchange) {
  const uint64_t blocks = from.first_block(from.manifest().files.size());
  DT_ASSIGN_OR_RETURN(const BlockSet unseen, BlockSet::Parse(text, blocks));
  const auto world = static_cast<uint64_t>(exchange.world_size());
  TensorReads reads(from);
  uint64_t number = 0;
  for (uint64_t block = 0; block < blocks; ++block) {
    if (unseen.Holds(block) && number++ % world == static_cast<uint64_t>(exchange.rank())) {
      reads.AddBlock(block);
    }
  }
  return reads.Run();
}

}  // namespace

std::string EncodeRestoreReport(const RestoreReport& report) {
  if (report.status.ok()) {
    return absl::StrCat(std::string(1, kReportSeen), report.seen);
  }
  const char kind = !report.damaged                           ? kReportFailed
                    : absl::IsPermissionDenied(report.status) ? kReportUnreadable
                                                              : kReportDamaged;
  return absl::StrCat(std::string(1, kind), report.status.message());
}

absl::StatusOr<RestoreReport> ParseRestoreReport(absl::string_view text) {
  RestoreReport report;
  if (text.empty()) {
    return StrangeMessage("report", text);
  }
  const absl::string_view rest = text.substr(1);
  switch (text.front()) {
    case kReportSeen:
      report.seen = std::string(rest);
      return report;
    case kReportDamaged:
    case kReportUnreadable:
      report.damaged = true;
      report.status = text.front() == kReportDamaged ? absl::InvalidArgumentError(rest)
                                                     : absl::PermissionDeniedError(rest);
      return report;
    case kReportFailed:
      report.status = absl::AbortedError(rest);
      return report;
    default:
      return StrangeMessage("report", text);
  }
}

RestoreVerdict JudgeRestore(const std::vector<std::string>& reports, uint64_t blocks) {
  using Kind = RestoreVerdict::Kind;
  BlockSet seen(blocks);
  std::optional<RestoreVerdict> damaged;
  std::optional<RestoreVerdict> failed;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    absl::StatusOr<RestoreReport> report = ParseRestoreReport(reports[rank]);
    auto mine = report.ok() && report->status.ok() ? BlockSet::Parse(report->seen, blocks)
                                                   : absl::StatusOr<BlockSet>(BlockSet(blocks));
    absl::Status status = report.ok() ? report->status : report.status();
    status.Update(mine.status());
    if (status.ok()) {
      seen.AddAll(*mine);
    } else if (report.ok() && report->damaged) {
      const bool unreadable = absl::IsPermissionDenied(status);
      if (!damaged.has_value() || (unreadable && damaged->kind != Kind::kUnreadable)) {
        damaged = RestoreVerdict{unreadable ? Kind::kUnreadable : Kind::kDamaged,
                                 std::string(status.message())};
      }
    } else if (!failed.has_value()) {
      failed = RestoreVerdict{
          Kind::kFailed, absl::StrCat("rank ", rank, " could not restore: ", status.message())};
    }
  }
  if (damaged.has_value() || failed.has_value()) {
    return damaged.has_value() ? *damaged : *failed;
  }
  BlockSet unseen(blocks);
  const std::vector<uint64_t> missing = seen.Missing();
  for (const uint64_t block : missing) {
    unseen.Add(block);
  }
  return missing.empty() ? RestoreVerdict{Kind::kWhole, ""}
                         : RestoreVerdict{Kind::kUnseen, unseen.Encode()};
}

absl::StatusOr<RestoreOutcome> AgreeOnRestore(Checkpoint& from, const absl::Status& mine,
                                              Exchange& exchange, absl::Duration timeout) {
  using Kind = RestoreVerdict::Kind;
  constexpr int kRoundsMax = 2;  // In the second one everything has been seen.
  const uint64_t blocks = from.first_block(from.manifest().files.size());
  absl::Status status = mine;
  for (int round = 0; round < kRoundsMax; ++round) {
    const RestoreReport report = {status, !from.damage().ok(), from.seen().Encode()};
    DT_ASSIGN_OR_RETURN(const std::vector<std::string> reports,
                        exchange.Gather(EncodeRestoreReport(report), Deadline::After(timeout)));
    std::string text;
    if (exchange.rank() == 0) {
      const RestoreVerdict verdict = JudgeRestore(reports, blocks);
      text = absl::StrCat(std::string(1, static_cast<char>(verdict.kind)), verdict.text);
    }
    DT_ASSIGN_OR_RETURN(text, exchange.Broadcast(text, Deadline::After(timeout)));
    const Kind kind = text.empty() ? Kind::kFailed : static_cast<Kind>(text.front());
    const absl::string_view rest = absl::string_view(text).substr(text.empty() ? 0 : 1);
    switch (kind) {
      case Kind::kWhole:
        return RestoreOutcome{};
      case Kind::kUnseen:
        DT_RETURN_IF_ERROR(exchange.Together(
            [&] {
              status = ReadUnseen(from, rest, exchange);
              return absl::OkStatus();
            },
            timeout));
        continue;
      case Kind::kDamaged:
        if (exchange.rank() == 0) {
          LogNotUsed(from.manifest().id, absl::InvalidArgumentError(rest));
        }
        return RestoreOutcome{absl::InvalidArgumentError(rest)};
      case Kind::kUnreadable:
        return CannotBeRead(from.manifest().id, absl::PermissionDeniedError(rest));
      case Kind::kFailed:
        DT_RETURN_IF_ERROR(status);
        return absl::AbortedError(rest);
    }
    return StrangeMessage("verdict", text);
  }
  return absl::InternalError(absl::StrCat(
      from.DisplayName(), " has blocks that no rank reads although each has a reader"));
}

}  // namespace dtrain::checkpoint
