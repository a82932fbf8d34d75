// libsentencepiece behind types of the standard library: its header declares absl::string_view as
// another type than Debian's Abseil, so that no file can include both. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace dtrain::plan {

class SentencePieceLibrary {
 public:
  // nullptr and a text in `error`: the library does not read the model.
  static std::unique_ptr<SentencePieceLibrary> Load(const std::string& model, std::string* error);

  virtual ~SentencePieceLibrary() = default;

  // False and a text in `error`: the library cannot encode the text.
  virtual bool Encode(const std::string& text, std::vector<int>* ids, std::string* error) const = 0;
  // REQUIRES: ids of the vocabulary.
  virtual std::string Decode(const std::vector<int>& ids) const = 0;

  virtual int size() const = 0;
  virtual int begin_id() const = 0;  // Negative: there is none.
  virtual int end_id() const = 0;
  virtual int IdOf(const std::string& piece) const = 0;  // The unknown piece's, if there is none.
  virtual std::string PieceOf(int id) const = 0;
  virtual bool IsControl(int id) const = 0;

 protected:
  SentencePieceLibrary() = default;
};

}  // namespace dtrain::plan
