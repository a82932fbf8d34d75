// What a SentencePiece model does to texts, natively or by its library. Of types of the standard
// library: libsentencepiece's header declares absl::string_view as another type than Debian's
// Abseil, so that no file can include both. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::plan {

class SentencePieceCodec {
 public:
  // The codec of libsentencepiece. nullptr and a text in `error`: the library does not read the
  // model, or this program is linked without it.
  static std::unique_ptr<SentencePieceCodec> OfLibrary(const std::string& model,
                                                       std::string* error);

  virtual ~SentencePieceCodec() = default;

  // Appends the tokens of `text`, which is UTF-8. False and a text in `error`: it cannot be
  // encoded.
  virtual bool Encode(std::string_view text, std::vector<uint32_t>* ids,
                      std::string* error) const = 0;
  // REQUIRES: ids of the vocabulary.
  virtual std::string Decode(const std::vector<uint32_t>& ids) const = 0;

  virtual uint32_t size() const = 0;
  virtual int begin_id() const = 0;  // Negative: there is none.
  virtual int end_id() const = 0;
  virtual int IdOf(const std::string& piece) const = 0;  // The unknown piece's, if there is none.
  virtual std::string PieceOf(uint32_t id) const = 0;
  virtual bool IsControl(uint32_t id) const = 0;

 protected:
  SentencePieceCodec() = default;
};

}  // namespace dtrain::plan
