#include "runtime/job/gather_texts.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain {
namespace {

comm::Buffer TextBuffer(void* data, size_t bytes) { return {data, bytes, DType::kUInt8, {}}; }

}  // namespace

absl::StatusOr<std::vector<std::string>> GatherTexts(comm::Group& group, const std::string& mine,
                                                     Deadline deadline) {
  const auto world = static_cast<size_t>(group.size());
  uint64_t length = mine.size();
  std::vector<uint64_t> lengths(world);
  DT_ASSIGN_OR_RETURN(
      comm::Work work,
      group.AllGather(TextBuffer(&length, sizeof(length)),
                      TextBuffer(lengths.data(), world * sizeof(uint64_t)),
                      {.name = "text sizes", .caller_waits = true, .deadline = deadline}));
  DT_RETURN_IF_ERROR(work.Wait());
  const size_t widest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(world);
  if (widest == 0) {
    return texts;
  }
  std::string padded = mine;
  padded.resize(widest);
  std::string all(world * widest, '\0');
  DT_ASSIGN_OR_RETURN(
      work, group.AllGather(TextBuffer(padded.data(), widest), TextBuffer(all.data(), all.size()),
                            {.name = "texts", .caller_waits = true, .deadline = deadline}));
  DT_RETURN_IF_ERROR(work.Wait());
  for (size_t rank = 0; rank < world; ++rank) {
    texts[rank] = all.substr(rank * widest, lengths[rank]);
  }
  return texts;
}

absl::Status AgreeOnError(Job& job, const absl::Status& mine) {
  // The code as a letter, and the message.
  const std::string text =
      mine.ok()
          ? ""
          : absl::StrCat(std::string(1, static_cast<char>('a' + mine.raw_code())), mine.message());
  DT_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      GatherTexts(job.group(), text,
                  Deadline::After(absl::Seconds(job.config().comm_timeout_seconds()))));
  const auto first = std::find_if(texts.begin(), texts.end(),
                                  [](const std::string& each) { return !each.empty(); });
  if (first == texts.end()) {
    return absl::OkStatus();
  }
  const bool is_of_all = std::all_of(texts.begin(), texts.end(),
                                     [&](const std::string& each) { return each == *first; });
  const auto code = static_cast<absl::StatusCode>(first->front() - 'a');
  return {code, is_of_all
                    ? first->substr(1)
                    : absl::StrCat("on rank ", first - texts.begin(), ": ", first->substr(1))};
}

absl::Status CheckSameOnRanks(Job& job, const std::string& mine, SayDifference say) {
  DT_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      GatherTexts(job.group(), mine,
                  Deadline::After(absl::Seconds(job.config().comm_timeout_seconds()))));
  const auto other = std::find_if(texts.begin(), texts.end(),
                                  [&](const std::string& text) { return text != texts[0]; });
  return other == texts.end() ? absl::OkStatus()
                              : absl::InvalidArgumentError(
                                    say(texts[0], *other, static_cast<int>(other - texts.begin())));
}

}  // namespace dtrain
