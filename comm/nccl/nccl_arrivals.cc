#include "comm/nccl/nccl_arrivals.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace dtrain::comm {
namespace {

constexpr int kRanksNamedMax = 16;
constexpr int kRanksComparedMax = 256;  // Each costs one read of the store.

void Warn(const char* what, const absl::Status& status) {
  if (!status.ok()) {
    DT_LOG(Warning) << what << ": " << status.ToString();
  }
}

}  // namespace

absl::Status NcclArrivals::Introduce(const std::string& who) {
  return store_ == nullptr ? absl::OkStatus()
                           : store_->Set(RankKey(absl::StrCat(prefix_, "/who"), rank_), who,
                                         Deadline::After(kStoreBound));
}

std::string NcclArrivals::NameOf(int rank) const {
  std::string name = absl::StrCat("rank ", rank);
  if (store_ == nullptr) {
    return name;
  }
  const std::vector<std::string> keys = {RankKey(absl::StrCat(prefix_, "/who"), rank)};
  const Deadline deadline = Deadline::After(kStoreBound);
  if (const auto found = store_->Check(keys, deadline); found.ok() && found->front()) {
    if (const auto who = store_->Get(keys.front(), deadline); who.ok()) {
      absl::StrAppend(&name, " (", *who, ")");
    }
  }
  return name;
}

std::string NcclArrivals::JoinNames(const std::vector<int>& ranks) const {
  const auto shown = std::min<size_t>(ranks.size(), kRanksNamedMax);
  std::string text;
  for (size_t i = 0; i < shown; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", NameOf(ranks[i]));
  }
  if (shown < ranks.size()) {
    absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  }
  return text;
}

std::string NcclArrivals::SequencePrefix(uint64_t sequence) const {
  return absl::StrCat(prefix_, "/late/", sequence);
}

std::string NcclArrivals::QuestionKey(uint64_t slot) const {
  return absl::StrCat(prefix_, "/asked/", slot);
}

void NcclArrivals::Announce(uint64_t sequence, absl::string_view what) {
  uint64_t& announced = announced_[sequence % kQuestions];
  if (store_ != nullptr && std::exchange(announced, sequence + 1) != sequence + 1) {
    Warn("announcing a late collective",
         store_->Set(RankKey(SequencePrefix(sequence), rank_), what, Deadline::After(kStoreBound)));
  }
}

std::string NcclArrivals::Explain(uint64_t sequence, const std::string& what) const {
  if (store_ == nullptr) {
    return "this rank is alone: its device or stream is stuck";
  }
  const Deadline deadline = Deadline::After(kStoreBound);
  const auto missing = MissingRanks(*store_, SequencePrefix(sequence), size_, deadline);
  if (!missing.ok()) {
    return absl::StrCat("who arrived is unknown (", missing.status().message(), ")");
  }
  if (!missing->empty()) {
    return absl::StrCat("did not arrive: ", JoinNames(*missing));
  }
  for (int rank = 0; rank < std::min(size_, kRanksComparedMax); ++rank) {
    const auto other = store_->Get(RankKey(SequencePrefix(sequence), rank), deadline);
    if (other.ok() && *other != what && *other != kThrough) {
      return absl::StrCat("the ranks disagree: rank ", rank, " called ", *other);
    }
  }
  return "every rank arrived: a device, a link or the network is stuck";
}

void NcclArrivals::AnnounceAbort(const std::string& reason) const {
  if (store_ != nullptr) {
    const auto set = store_->CompareExchange(absl::StrCat(prefix_, "/abort"), std::nullopt,
                                             absl::StrCat("rank ", rank_, ": ", reason),
                                             Deadline::After(kStoreBound));
    Warn("telling the peers of the abort", set.status());
  }
}

void NcclArrivals::Ask(uint64_t sequence) const {
  if (store_ != nullptr) {
    Warn("asking who is in a collective",
         store_->Set(QuestionKey(sequence % kQuestions), absl::StrCat(sequence),
                     Deadline::After(kStoreBound)));
  }
}

NcclArrivals::Notes NcclArrivals::Poll() {
  Notes notes;
  if (store_ == nullptr) {
    return notes;
  }
  std::vector<std::string> keys = {absl::StrCat(prefix_, "/abort")};
  for (uint64_t slot = 0; slot < kQuestions; ++slot) {
    keys.push_back(QuestionKey(slot));
  }
  const Deadline deadline = Deadline::After(kStoreBound);
  const auto found = store_->Check(keys, deadline);
  if (!found.ok()) {
    return notes;
  }
  for (uint64_t slot = 0; slot < kQuestions; ++slot) {
    uint64_t sequence = 0;
    if (!(*found)[slot + 1]) {
      continue;
    }
    const auto asked = store_->Get(keys[slot + 1], deadline);
    if (asked.ok() && absl::SimpleAtoi(*asked, &sequence) && announced_[slot] != sequence + 1) {
      notes.questions.push_back(sequence);
    }
  }
  if (found->front()) {
    const auto reason = store_->Get(keys.front(), deadline);
    notes.abort = reason.ok() ? std::optional<std::string>(*reason) : std::nullopt;
  }
  return notes;
}

}  // namespace dtrain::comm
