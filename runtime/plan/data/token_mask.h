// The mask beside a token file: for each token, whether its prediction is trained on and whether it
// starts a sample. `train.bin` has its mask in `train.bin.mask`, which `dtrain data prepare` writes
// for instruction data. docs/DATA_FORMAT.md describes the format.
//
// Thread-safe after Open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/data/data_file.h"

namespace dtrain::plan {

inline constexpr int64_t kMaskHeaderBytes = 64;
inline constexpr absl::string_view kMaskMagic("DTRNMASK");
inline constexpr int32_t kMaskVersion = 1;

// The bits of a token's byte; the others are 0.
inline constexpr uint8_t kMaskTrained = 1;  // The loss counts the prediction of this token.
inline constexpr uint8_t kMaskStart = 2;    // It starts a sample, or padding.

struct MaskHeader {
  int64_t tokens = 0;
  int64_t row_length = 0;  // Samples are packed into rows of so many tokens; 0: into none.
  int64_t trained = 0;     // How many tokens are trained on.
  bool operator==(const MaskHeader&) const = default;
};

// Reads the header of a mask of `file_bytes` bytes that begins with `head` (its first 64 bytes, or
// all of it). InvalidArgument names `path`; any input is safe.
absl::StatusOr<MaskHeader> ParseMaskHeader(absl::string_view head, int64_t file_bytes,
                                           absl::string_view path);
std::string MakeMaskHeader(const MaskHeader& header);

// Where the mask of a token file is, if it has one.
std::string MaskPath(const std::string& token_path);
// Whether a token file at this address may have a mask: one with a query has none.
bool MayHaveMask(const std::string& token_path);

class MaskFile {
 public:
  // Opens the mask of a file of `tokens` tokens; nothing if there is none. InvalidArgument: it is
  // damaged, or of another file. `store`: as DataFile::Open; an address with a query has no mask.
  static absl::StatusOr<std::optional<MaskFile>> OpenFor(const std::string& token_path,
                                                         int64_t tokens,
                                                         DataStore* store = nullptr);
  const MaskHeader& header() const { return header_; }
  const std::string& path() const { return file_.path(); }

  // The bytes of the tokens [begin, begin + out.size()). InvalidArgument when one has unknown bits,
  // or the file has been cut since it was opened.
  absl::Status Copy(int64_t begin, absl::Span<uint8_t> out) const;
  // Says that these bytes will be read soon; as DataFile::WillRead.
  bool WillRead(int64_t begin, int64_t tokens) const {
    return file_.WillRead(kMaskHeaderBytes + begin, tokens);
  }

 private:
  MaskFile(DataFile file, const MaskHeader& header) : file_(std::move(file)), header_(header) {}

  DataFile file_;
  MaskHeader header_;
};

}  // namespace dtrain::plan
