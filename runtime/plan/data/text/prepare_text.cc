#include "runtime/plan/data/text/prepare_text.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "base/system/cgroup.h"
#include "base/threads/worker.h"
#include "base/unique_fd.h"
#include "runtime/plan/data/data_file.h"
#include "runtime/plan/data/row_columns.h"
#include "runtime/plan/data/text/prepare_output.h"
#include "runtime/plan/data/text/text_sources.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/tokenizer_files.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain::plan {
namespace {

constexpr char kWorkFolder[] = ".prepare";

absl::Status CheckOptions(const PrepareTextOptions& options) {
  const struct {
    const char* option;
    int64_t value;
    int64_t low;
    int64_t high;
  } ranges[] = {{"--validation-percent", options.validation_percent, 1, 50},
                {"--sequence-length", options.rules.row_length, 2, int64_t{1} << 24},
                {"--shard-tokens", options.shard_tokens, 1024, kTokensMax},
                {"--skip-bad", options.skip_bad, 0, int64_t{1} << 48},
                {"--max-file-bytes", options.file_bytes_max, 1, kDocumentBytesMax},
                {"--threads", options.threads, 0, 4096}};
  for (const auto& range : ranges) {
    if (range.value < range.low || range.value > range.high) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is %d; it must be from %d to %d", range.option, range.value, range.low, range.high));
    }
  }
  if (options.out.empty()) {
    return absl::InvalidArgumentError("no output folder is given; give --out FOLDER");
  }
  const bool has_rows = options.rules.chat.has_value();
  if (has_rows && options.format == CorpusFormat::kMegatron) {
    return absl::InvalidArgumentError(
        "--format megatron has no place for masks; instruction data are written as llmc");
  }
  if (has_rows && options.shard_tokens <= options.rules.row_length) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--shard-tokens %d is not above --sequence-length %d; a file holds at least one row",
        options.shard_tokens, options.rules.row_length));
  }
  return absl::OkStatus();
}

// A hash of everything that the output follows from.
std::string Fingerprint(const PrepareTextOptions& options, const FoundSources& found,
                        const TextEncoder& encoder) {
  StableHash hash;
  hash.Add(encoder.identity()).Add(uint64_t{encoder.end_token()});
  hash.Add(options.rules.text_key).Add(options.rules.keys.prompt);
  hash.Add(options.rules.keys.completion);
  hash.Add(options.rules.chat.has_value() ? 1 + static_cast<uint64_t>(*options.rules.chat) : 0);
  for (const int64_t value :
       {options.rules.row_length, static_cast<int64_t>(options.rules.long_samples),
        static_cast<int64_t>(options.format), options.shard_tokens, options.bytes_max,
        int64_t{options.validation_percent}}) {
    hash.Add(static_cast<uint64_t>(value));
  }
  for (const TextSource& source : found.sources) {
    hash.Add(source.path).Add(static_cast<uint64_t>(source.bytes));
    hash.Add(static_cast<uint64_t>(source.modified_ns));
  }
  return absl::StrFormat("%016x", hash.value());
}

int Threads(int asked) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return asked > 0 ? asked : std::max(1, CpusWithin(CpuQuota(), cores));
}

// The documents that were seen, by their hashes: in memory and in a file of the working folder.
class SeenDocuments {
 public:
  static absl::StatusOr<SeenDocuments> Open(const std::string& path, int64_t count) {
    SeenDocuments seen;
    DT_ASSIGN_OR_RETURN(GrowingFile file, GrowingFile::Open(path, 8 * count));
    seen.file_ = std::make_unique<GrowingFile>(std::move(file));
    DT_ASSIGN_OR_RETURN(const DataFile data, DataFile::Open(path, "hashes"));
    std::vector<uint64_t> block(1 << 16);
    for (int64_t done = 0; done < count;) {
      const auto n = std::min<int64_t>(count - done, static_cast<int64_t>(block.size()));
      DT_RETURN_IF_ERROR(data.ReadAt(
          8 * done, {reinterpret_cast<char*>(block.data()), 8 * static_cast<size_t>(n)}));
      seen.hashes_.insert(block.begin(), block.begin() + n);
      done += n;
    }
    return seen;
  }
  // False: it was there.
  absl::StatusOr<bool> Add(uint64_t hash) {
    if (!hashes_.insert(hash).second) {
      return false;
    }
    DT_RETURN_IF_ERROR(file_->Append(&hash, sizeof(hash)));
    return true;
  }
  absl::Status Sync() { return file_->Sync(); }
  int64_t size() const { return static_cast<int64_t>(hashes_.size()); }

 private:
  absl::flat_hash_set<uint64_t> hashes_;
  std::unique_ptr<GrowingFile> file_;
};

class Preparation {
 public:
  Preparation(const PrepareTextOptions& options, const TextEncoder& encoder)
      : options_(options), encoder_(encoder), work_(absl::StrCat(options.out, "/", kWorkFolder)) {}

  absl::StatusOr<TextReport> Run() {
    DT_RETURN_IF_ERROR(Begin());
    DT_RETURN_IF_ERROR(ReadAll());
    DT_RETURN_IF_ERROR(Commit());
    DT_RETURN_IF_ERROR(WriteFiles());
    std::error_code ignored;
    std::filesystem::remove_all(work_, ignored);
    return std::move(report_);
  }

 private:
  struct InFlight {
    TextChunk chunk;
    std::future<ChunkDocuments> made;
  };

  absl::Status Begin() {
    DT_ASSIGN_OR_RETURN(found_,
                        FindSources(options_.sources,
                                    {options_.extensions, options_.file_bytes_max, options_.out}));
    if (found_.sources.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("no file was found; %d files of folders are longer than "
                          "--max-file-bytes %d, %d cannot be read",
                          found_.too_long, options_.file_bytes_max, found_.unreadable));
    }
    DT_RETURN_IF_ERROR(MakeDirectories(work_));
    DT_RETURN_IF_ERROR(Lock());
    const std::string fingerprint = Fingerprint(options_, found_, encoder_);
    progress_ = Journal(fingerprint);
    resumed_ = progress_.source > 0 || progress_.record > 0;
    first_source_ = static_cast<size_t>(progress_.source);
    progress_.fingerprint = fingerprint;
    progress_.counts.too_long = found_.too_long;
    progress_.counts.unreadable = found_.unreadable;
    const int width = encoder_.vocabulary() <= 65536 ? 2 : 4;
    const bool is_masked = options_.rules.chat.has_value();
    DT_ASSIGN_OR_RETURN(TokenSpool train,
                        TokenSpool::Open({work_ + "/train", width, is_masked}, progress_.train));
    DT_ASSIGN_OR_RETURN(TokenSpool validation,
                        TokenSpool::Open({work_ + "/val", width, is_masked}, progress_.validation));
    DT_ASSIGN_OR_RETURN(SeenDocuments seen, SeenDocuments::Open(work_ + "/seen", progress_.seen));
    train_ = std::make_unique<TokenSpool>(std::move(train));
    validation_ = std::make_unique<TokenSpool>(std::move(validation));
    seen_ = std::make_unique<SeenDocuments>(std::move(seen));
    return absl::OkStatus();
  }

  // Two preparations would write the same files.
  absl::Status Lock() {
    const std::string path = work_ + "/lock";
    DT_ASSIGN_OR_RETURN(lock_, OpenFile(path, O_RDWR | O_CREAT));
    if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "another preparation writes to %s; wait for its end, or name another --out",
          options_.out));
    }
    return absl::OkStatus();
  }

  // Opens the journal of an interrupted run of the same work, or else a new one. Standard input
  // cannot be read again.
  PrepareProgress Journal(const std::string& fingerprint) const {
    const bool has_input =
        std::any_of(found_.sources.begin(), found_.sources.end(),
                    [](const TextSource& source) { return source.path == kStandardInput; });
    const auto text = ReadFile(JournalPath(), 1U << 20);
    const auto json = text.ok() ? ParseJson(*text, "journal.json") : text.status();
    const auto saved = json.ok() ? PrepareProgress::FromJson(*json)
                                 : absl::StatusOr<PrepareProgress>(json.status());
    return !has_input && saved.ok() && saved->fingerprint == fingerprint ? *saved
                                                                         : PrepareProgress();
  }
  std::string JournalPath() const { return work_ + "/journal.json"; }

  // Keeps some chunks in work on other threads, and takes the results in order.
  absl::Status ReadAll() {
    if (progress_.at_limit) {
      return absl::OkStatus();
    }
    ChunkReader reader(found_.sources, static_cast<size_t>(progress_.source), progress_.record,
                       ColumnsFor(options_.rules));
    std::deque<InFlight> in_flight;
    std::vector<std::unique_ptr<Worker>> workers;  // They end before what they work on.
    for (int i = 0; i < Threads(options_.threads); ++i) {
      workers.push_back(std::make_unique<Worker>(
          WorkerOptions{.name = absl::StrFormat("dt-text-%d", i), .queue_capacity = kChunksEach}));
    }
    const size_t most = kChunksEach * workers.size();
    // A chunk is as long as its longest document, so that their bytes are bounded too.
    const size_t bytes_most = std::max(kBytesInFlight, most * ChunkReader::kChunkBytes);
    size_t bytes = 0;
    const auto take = [&] {
      bytes -= in_flight.front().chunk.bytes.size();
      const absl::Status taken = Take(in_flight.front().chunk, in_flight.front().made.get());
      in_flight.pop_front();
      return taken;
    };
    absl::Status status;
    bool at_end = false;
    // Documents behind the limit do not count, however many of them were read ahead.
    for (size_t next = 0; status.ok() && !progress_.at_limit && !(at_end && in_flight.empty());) {
      if (at_end || in_flight.size() == most || bytes >= bytes_most) {
        status = take();
        Report(reader);
        continue;
      }
      absl::StatusOr<std::optional<TextChunk>> chunk = reader.Next();
      if (!chunk.ok()) {
        // Bad records and the limit before the place of this error come first.
        while (status.ok() && !progress_.at_limit && !in_flight.empty()) {
          status = take();
        }
        status = status.ok() && !progress_.at_limit ? LeaveOut(chunk.status(), reader) : status;
        continue;
      }
      if (!chunk->has_value()) {
        at_end = true;
        continue;
      }
      bytes += (*chunk)->bytes.size();
      in_flight.push_back({*std::move(*chunk), {}});
      Submit(in_flight.back(), *workers[next++ % workers.size()]);
    }
    return status;  // Workers finish what they were given.
  }

  // Goes on behind a source that cannot be read, if --skip-bad allows it.
  absl::Status LeaveOut(const absl::Status& why, ChunkReader& reader) {
    DT_RETURN_IF_ERROR(CountBad(why.code(), std::string(why.message())));
    reader.SkipSource();
    progress_.source = static_cast<int64_t>(reader.source());
    progress_.record = 0;
    return absl::OkStatus();
  }

  absl::Status CountBad(absl::StatusCode code, const std::string& what) {
    PrepareCounts& counts = progress_.counts;
    if (counts.bad == options_.skip_bad) {
      return absl::Status(
          code, absl::StrFormat("%s; %s", what,
                                options_.skip_bad == 0
                                    ? "--skip-bad N leaves out up to N such records, and what "
                                      "follows in a file that cannot be read"
                                    : absl::StrFormat("--skip-bad %d have been left out before",
                                                      options_.skip_bad)));
    }
    ++counts.bad;
    report_.first_bad = report_.first_bad.empty() ? what : report_.first_bad;
    return absl::OkStatus();
  }

  void Submit(InFlight& flight, Worker& worker) {
    auto made = std::make_shared<std::promise<ChunkDocuments>>();
    flight.made = made->get_future();
    const TextSource& source = found_.sources[flight.chunk.source];
    // A deque does not move its elements when others are added or removed at its ends.
    worker.Submit([this, made, &source, chunk = &flight.chunk] {
      made->set_value(MakeDocuments(*chunk, source, options_.rules, encoder_));
    });
  }

  // The documents of the next chunk, in order.
  absl::Status Take(const TextChunk& chunk, ChunkDocuments made) {
    PrepareCounts& counts = progress_.counts;
    for (const BadRecord& bad : made.bad) {
      const std::string place = RecordPlace(found_.sources[chunk.source].name, chunk, bad.line);
      DT_RETURN_IF_ERROR(
          CountBad(absl::StatusCode::kInvalidArgument, absl::StrCat(place, ": ", bad.what)));
    }
    counts.empty += made.empty;
    counts.no_completion += made.no_completion;
    counts.cut += made.cut;
    counts.dropped_long += made.dropped_long;
    counts.not_text += made.not_text;
    for (const Document& document : made.documents) {
      DT_RETURN_IF_ERROR(TakeDocument(document));
    }
    progress_.source = static_cast<int64_t>(chunk.source);
    progress_.record = chunk.first_record + chunk.records;
    uncommitted_ += static_cast<int64_t>(chunk.bytes.size());
    return uncommitted_ >= options_.commit_bytes ? Commit() : absl::OkStatus();
  }

  absl::Status TakeDocument(const Document& document) {
    PrepareCounts& counts = progress_.counts;
    if (progress_.at_limit ||
        (options_.bytes_max > 0 && counts.text_bytes + document.text_bytes > options_.bytes_max)) {
      progress_.at_limit = true;
      return absl::OkStatus();
    }
    DT_ASSIGN_OR_RETURN(const bool is_new, seen_->Add(document.content_hash));
    if (!is_new) {
      ++counts.equal;
      return absl::OkStatus();
    }
    counts.text_bytes += document.text_bytes;
    const bool validates =
        MixBits(document.split_hash) % 100 < static_cast<uint64_t>(options_.validation_percent);
    return (validates ? validation_ : train_)->Append(document.ids, document.mask);
  }

  absl::Status Commit() {
    DT_RETURN_IF_ERROR(train_->Sync());
    DT_RETURN_IF_ERROR(validation_->Sync());
    DT_RETURN_IF_ERROR(seen_->Sync());
    progress_.train = train_->size();
    progress_.validation = validation_->size();
    progress_.seen = seen_->size();
    uncommitted_ = 0;
    return WriteFileAtomic(JournalPath(), DumpJson(progress_.ToJson()) + "\n");
  }

  void Report(const ChunkReader& reader) const {
    if (!options_.progress) {
      return;
    }
    TextProgress now;
    int64_t before = 0;  // Bytes of the sources that an earlier run has done.
    for (size_t i = 0; i < found_.sources.size(); ++i) {
      const int64_t bytes = found_.sources[i].bytes;
      now.bytes = i == 0 ? bytes : (bytes < 0 || now.bytes < 0 ? -1 : now.bytes + bytes);
      before += i < first_source_ ? std::max<int64_t>(0, bytes) : 0;
    }
    now.bytes_done = before + reader.bytes_consumed();
    now.documents = train_->size().documents + validation_->size().documents;
    now.tokens = train_->size().tokens + validation_->size().tokens;
    now.resumed = resumed_;
    options_.progress(now);
  }

  absl::Status WriteFiles() {
    const auto whole = [](const TokenSpool& spool) {
      return SpoolRange{spool.files(), 0, spool.size().documents, 0, spool.size().tokens};
    };
    SpoolRange train = whole(*train_);
    SpoolRange validation = whole(*validation_);
    DT_RETURN_IF_ERROR(
        DivideSplits(progress_.counts, options_.rules.chat.has_value(), train, validation));
    const CorpusFilesOptions files{
        .folder = options_.out,
        .work_folder = work_,
        .format = options_.format,
        .vocabulary = encoder_.vocabulary(),
        .shard_tokens = options_.shard_tokens,
        .row_length = options_.rules.chat.has_value() ? options_.rules.row_length : 0,
        .pad_token = encoder_.end_token()};
    DT_ASSIGN_OR_RETURN(report_.train, WriteSplitFiles(train, "train", files));
    DT_ASSIGN_OR_RETURN(report_.validation, WriteSplitFiles(validation, "val", files));
    report_.train_documents = train.documents;
    report_.validation_documents = validation.documents;
    report_.counts = progress_.counts;
    DT_RETURN_IF_ERROR(
        PublishFiles({report_.train, report_.validation}, {"train", "val"}, options_.out));
    DT_RETURN_IF_ERROR(WriteCorpusTokenizer(options_.out, encoder_.files()));
    return WriteFileAtomic(options_.out + "/corpus.json",
                           DumpJson(CorpusManifest(options_, encoder_, report_), 2) + "\n");
  }

  static constexpr size_t kChunksEach = 3;             // In work or waiting, for each thread.
  static constexpr size_t kBytesInFlight = 64U << 20;  // Bytes of text; more with many threads.

  const PrepareTextOptions& options_;
  const TextEncoder& encoder_;
  const std::string work_;
  UniqueFd lock_;
  FoundSources found_;
  PrepareProgress progress_;
  size_t first_source_ = 0;
  bool resumed_ = false;
  int64_t uncommitted_ = 0;  // Bytes of text since the last journal.
  std::unique_ptr<TokenSpool> train_;
  std::unique_ptr<TokenSpool> validation_;
  std::unique_ptr<SeenDocuments> seen_;
  TextReport report_;
};

}  // namespace

absl::StatusOr<TextReport> PrepareText(const PrepareTextOptions& options,
                                       const TextEncoder& encoder) {
  DT_RETURN_IF_ERROR(CheckOptions(options));
  return Preparation(options, encoder).Run();
}

}  // namespace dtrain::plan
