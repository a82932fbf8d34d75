// Ids equal those of SentencePiece's own library, for models that it trained.
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_bpe.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_library.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_proto.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"
#include "tests/runtime/plan/tokenizer/train_sentencepiece.h"

namespace dtrain::plan::sentencepiece_bpe_test {
namespace {

constexpr unsigned kSeed = 20261127;

// Parts of which texts are made: words, composed and compatible characters, white space, spaces of
// SentencePiece, control characters, pieces' own names and characters that no model has seen.
const std::vector<std::string>& Parts() {
  static const std::vector<std::string> parts = {"the ",
                                                 "training",
                                                 " of",
                                                 "model",
                                                 "aaa",
                                                 "aa",
                                                 "a",
                                                 "b",
                                                 "ab",
                                                 "  ",
                                                 " ",
                                                 "\t",
                                                 "\n",
                                                 "\r\n",
                                                 "é",
                                                 "e\u0301",
                                                 "ﬁ",
                                                 "½",
                                                 "①",
                                                 "Å",
                                                 "Ω",
                                                 "привет ",
                                                 "мир",
                                                 "世界",
                                                 "世",
                                                 "界 ",
                                                 "がぎ",
                                                 "か\u3099",
                                                 "ｱ",
                                                 "한글",
                                                 "\u1112\u1161\u11ab",
                                                 "😀",
                                                 "👩‍💻",
                                                 "\u2581",
                                                 "\u2581\u2581",
                                                 "\u00a0",
                                                 "\u3000",
                                                 "\u200b",
                                                 "<s>",
                                                 "<0x41>",
                                                 "<unk>",
                                                 "\x01",
                                                 "\x7f",
                                                 "\ufffd",
                                                 "A\u030a",
                                                 "ẛ\u0323",
                                                 "123",
                                                 "4.5",
                                                 "𝔘",
                                                 "\u0958",
                                                 "नमस्ते ",
                                                 "ß",
                                                 "İ",
                                                 "..."};
  return parts;
}

std::string RandomText(std::mt19937& random, size_t parts_max) {
  std::string text;
  for (size_t n = random() % (parts_max + 1); n > 0; --n) {
    if (random() % 8 == 0) {
      const auto any = static_cast<uint32_t>(random() % 0x30000);
      AppendCodePoint(any >= 0xd800 && any < 0xe000 ? 'x' : any, &text);
    } else {
      text += Parts()[random() % Parts().size()];
    }
  }
  return text;
}

std::string Trained(const std::string& flags) {
  const std::string folder = testing::TempDir();
  const std::string input = absl::StrCat(folder, "/sentences.txt");
  {
    std::mt19937 random(kSeed);
    std::ofstream file(input);
    for (int line = 0; line < 400; ++line) {
      for (int part = 0; part < 12; ++part) {
        file << Parts()[random() % 30] << (random() % 3 == 0 ? " " : "");
      }
      file << "\n";
    }
  }
  return TrainSentencePiece(absl::StrCat(flags, " --input=", input, " --hard_vocab_limit=false"),
                            absl::StrCat(folder, "/sentencepiece_bpe_test"));
}

void ExpectLibrarysIds(const std::string& model) {
  const auto proto = ParseSentencePieceProto(model);
  ASSERT_TRUE(proto.ok()) << proto.status();
  const std::unique_ptr<SentencePieceBpe> bpe = SentencePieceBpe::Create(*proto);
  ASSERT_NE(bpe, nullptr);
  std::string error;
  const auto library = SentencePieceLibrary::Load(model, &error);
  ASSERT_NE(library, nullptr) << error;
  std::mt19937 random(kSeed);
  size_t longest = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = RandomText(random, i % 100 == 0 ? 400 : 12);
    std::vector<int> want;
    ASSERT_TRUE(library->Encode(text, &want, &error)) << error;
    std::vector<uint32_t> ids;
    bpe->Encode(text, &ids);
    ASSERT_EQ(std::vector<int>(ids.begin(), ids.end()), want) << "seed " << kSeed << ": " << text;
    longest = std::max(longest, ids.size());
  }
  EXPECT_GT(longest, 300U);
}

TEST(SentencePieceBpeTest, IdsAreThoseOfTheLibraryWithByteFallback) {
  ExpectLibrarysIds(Trained("--model_type=bpe --vocab_size=420 --byte_fallback=true"));
}

TEST(SentencePieceBpeTest, IdsAreThoseOfTheLibraryWithUnknownPieces) {
  ExpectLibrarysIds(Trained("--model_type=bpe --vocab_size=150"));
}

TEST(SentencePieceBpeTest, IdsAreThoseOfTheLibraryWhenAllSpacesStay) {
  ExpectLibrarysIds(
      Trained("--model_type=bpe --vocab_size=420 --byte_fallback=true "
              "--normalization_rule_name=identity --add_dummy_prefix=false "
              "--remove_extra_whitespaces=false --allow_whitespace_only_pieces=true"));
}

TEST(SentencePieceBpeTest, IdsAreThoseOfTheLibraryWhenPiecesCrossWords) {
  ExpectLibrarysIds(
      Trained("--model_type=bpe --vocab_size=300 --split_by_whitespace=false "
              "--normalization_rule_name=nfkc_cf"));
}

TEST(SentencePieceBpeTest, LeavesOtherModelsToTheLibrary) {
  const std::string bpe = " --model_type=bpe --vocab_size=150";
  for (const std::string& flags :
       {std::string("--model_type=unigram --vocab_size=100"), std::string("--model_type=char"),
        "--user_defined_symbols=ab" + bpe, "--treat_whitespace_as_suffix=true" + bpe}) {
    const auto proto = ParseSentencePieceProto(Trained(flags));
    ASSERT_TRUE(proto.ok()) << proto.status();
    EXPECT_EQ(SentencePieceBpe::Create(*proto), nullptr) << flags;
  }
}

TEST(SentencePieceBpeTest, NoDamageOfAModelBreaksTheEncoder) {
  const std::string model = Trained("--model_type=bpe --vocab_size=150");
  for (size_t size = 1; size < model.size(); size += 1 + size / 16) {
    (void)ParseSentencePieceProto(absl::string_view(model).substr(0, size));
  }
  std::mt19937 random(kSeed);
  int encoded = 0;
  for (int i = 0; i < 60; ++i) {
    std::string damaged = model;
    for (int j = 0; j < 8; ++j) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    const auto proto = ParseSentencePieceProto(damaged);
    const auto bpe = proto.ok() ? SentencePieceBpe::Create(*proto) : nullptr;
    for (int text = 0; bpe != nullptr && text < 20; ++text) {
      std::vector<uint32_t> ids;
      bpe->Encode(RandomText(random, 12), &ids);
      for (const uint32_t id : ids) {
        ASSERT_LT(id, proto->pieces.size()) << "seed " << kSeed;
      }
      ++encoded;
    }
  }
  EXPECT_GT(encoded, 0);
}

}  // namespace
}  // namespace dtrain::plan::sentencepiece_bpe_test
