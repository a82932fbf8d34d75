#include "comm/nccl/nccl_arrivals.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"

namespace dtrain::comm {
namespace {

constexpr int kRanksNamedMax = 16;
constexpr int kRanksComparedMax = 256;  // One store read each.

void Warn(const char* what, const absl::Status& status) {
  if (!status.ok()) {
    DT_LOG(Warning) << what << ": " << status.ToString();
  }
}

std::string JoinRanks(const std::vector<int>& ranks) {
  const auto shown = std::min<size_t>(ranks.size(), kRanksNamedMax);
  std::string text = absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<long>(shown), ", ");
  if (shown < ranks.size()) {
    absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  }
  return text;
}

}  // namespace

std::string NcclArrivals::SequencePrefix(uint64_t sequence) const {
  return absl::StrCat(prefix_, "/late/", sequence);
}

void NcclArrivals::Announce(uint64_t sequence, const std::string& what) {
  if (store_ != nullptr) {
    Warn("announcing a late collective",
         store_->Set(RankKey(SequencePrefix(sequence), rank_), what, Deadline::After(kStoreBound)));
  }
}

std::string NcclArrivals::Explain(uint64_t sequence, const std::string& what) {
  if (store_ == nullptr) {
    return "this rank is alone: its device or stream is stuck";
  }
  const Deadline deadline = Deadline::After(kStoreBound);
  const auto missing = MissingRanks(*store_, SequencePrefix(sequence), size_, deadline);
  if (!missing.ok()) {
    return absl::StrCat("who arrived is unknown (", missing.status().message(), ")");
  }
  if (!missing->empty()) {
    return absl::StrCat("did not arrive: rank ", JoinRanks(*missing));
  }
  for (int rank = 0; rank < std::min(size_, kRanksComparedMax); ++rank) {
    const auto other = store_->Get(RankKey(SequencePrefix(sequence), rank), deadline);
    if (other.ok() && *other != what) {
      return absl::StrCat("the ranks disagree: rank ", rank, " called ", *other);
    }
  }
  return "every rank arrived: a device, a link or the network is stuck";
}

void NcclArrivals::AnnounceAbort(const std::string& reason) {
  if (store_ != nullptr) {
    const auto set = store_->CompareExchange(absl::StrCat(prefix_, "/abort"), std::nullopt,
                                             absl::StrCat("rank ", rank_, ": ", reason),
                                             Deadline::After(kStoreBound));
    Warn("telling the peers of the abort", set.status());
  }
}

std::optional<std::string> NcclArrivals::PeerAbort() {
  if (store_ == nullptr) {
    return std::nullopt;
  }
  const std::vector<std::string> keys = {absl::StrCat(prefix_, "/abort")};
  const auto found = store_->Check(keys, Deadline::After(kStoreBound));
  if (!found.ok() || !found->front()) {
    return std::nullopt;
  }
  const auto reason = store_->Get(keys.front(), Deadline::After(kStoreBound));
  return reason.ok() ? std::optional<std::string>(*reason) : std::nullopt;
}

}  // namespace dtrain::comm
