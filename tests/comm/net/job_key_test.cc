#include "comm/net/job_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <set>
#include <string>

#include "absl/strings/escaping.h"

namespace dtrain::comm::job_key_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class JobKeyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/job_key_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    for (const char* name : {"/token", "/link"}) {
      ::unlink((folder_ + name).c_str());
    }
    ::rmdir(folder_.c_str());
  }
  // A token file with this content and mode.
  std::string File(const std::string& content, mode_t mode) {
    const std::string path = folder_ + "/token";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  std::string folder_;
  const std::string raw_ = "0123456789abcdefghijklmnopqrst\x01\xff";
  const std::string hex_ = absl::BytesToHexString(raw_);
};

TEST_F(JobKeyTest, RawAndHexFilesGiveTheSameKey) {
  const JobKey raw = JobKey::FromFile(File(raw_, 0600)).value();
  EXPECT_TRUE(raw == JobKey::FromFile(File(hex_, 0400)).value());
  EXPECT_TRUE(raw == JobKey::FromFile(File(hex_ + "\n", 0600)).value());
  EXPECT_TRUE(raw == JobKey::FromFile(File(hex_ + "\r\n", 0600)).value());
  std::string upper = hex_;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](char c) { return c >= 'a' && c <= 'f' ? static_cast<char>(c - 32) : c; });
  EXPECT_NE(upper, hex_);
  EXPECT_TRUE(raw == JobKey::FromFile(File(upper, 0600)).value());
}

TEST_F(JobKeyTest, FileThatOthersMayOpenIsRefusedWithTheModeAndTheRemedy) {
  for (const mode_t mode : {0644U, 0640U, 0604U, 0660U, 0700U}) {
    const auto key = JobKey::FromFile(File(raw_, mode));
    EXPECT_EQ(key.status().code(), absl::StatusCode::kPermissionDenied) << std::oct << mode;
    EXPECT_THAT(std::string(key.status().message()),
                AllOf(HasSubstr("mode 0"), HasSubstr("chmod 600"), Not(HasSubstr("0123456789ab"))));
  }
}

TEST_F(JobKeyTest, FileOfAnotherUserIsRefused) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can give a file away";
  }
  const std::string path = File(raw_, 0600);
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(JobKey::FromFile(path).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(JobKeyTest, LinkAndMissingFileAreRefusedByName) {
  const std::string link = folder_ + "/link";
  ASSERT_EQ(::symlink(File(raw_, 0600).c_str(), link.c_str()), 0);
  EXPECT_FALSE(JobKey::FromFile(link).ok());
  const auto missing = JobKey::FromFile(folder_ + "/none");
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/none"));
  EXPECT_FALSE(JobKey::FromFile(folder_).ok());
}

TEST_F(JobKeyTest, ContentThatIsNoTokenIsRefusedWithoutShowingIt) {
  for (const std::string& content : {std::string(), raw_.substr(1), raw_ + "x", hex_.substr(1),
                                     hex_ + "0", std::string(64, 'g'), hex_ + "\n\n\n\n"}) {
    const auto key = JobKey::FromFile(File(content, 0600));
    EXPECT_EQ(key.status().code(), absl::StatusCode::kInvalidArgument) << content.size();
    EXPECT_THAT(std::string(key.status().message()), Not(HasSubstr(hex_.substr(4, 8))));
  }
}

TEST_F(JobKeyTest, WrittenFileIsPrivateExclusiveAndReadable) {
  const JobKey key = JobKey::Generate().value();
  const std::string path = folder_ + "/token";
  const mode_t before = ::umask(0);
  ASSERT_TRUE(key.WriteFile(path).ok());
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  EXPECT_TRUE(JobKey::FromFile(path).value() == key);
  EXPECT_EQ(key.WriteFile(path).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(JobKeyTest, PipeHandsTheKeyOnOnce) {
  const JobKey key = JobKey::Generate().value();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], key.secret_bytes().data(), key.secret_bytes().size()), 32);
  ::close(ends[1]);
  EXPECT_TRUE(JobKey::Load(ends[0], "").value() == key);
  const auto closed = JobKey::FromFd(999999);
  EXPECT_EQ(closed.status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "short", 5), 5);
  ::close(ends[1]);
  const auto truncated = JobKey::FromFd(ends[0]);
  EXPECT_THAT(std::string(truncated.status().message()), HasSubstr("only 5 bytes"));
}

TEST_F(JobKeyTest, MissingTokenNamesBothWays) {
  const auto none = JobKey::Load(-1, "");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr("DTRAIN_TOKEN_FD"), HasSubstr("DTRAIN_TOKEN_FILE")));
}

TEST_F(JobKeyTest, KeysDifferByPurposeEpochAndPairButNotByOrder) {
  const JobKey key = JobKey::FromFile(File(raw_, 0600)).value();
  std::set<std::string> seen;
  const auto add = [&](const SecretKey& derived) {
    return seen
        .insert(std::string(reinterpret_cast<const char*>(derived.bytes().data()),
                            derived.bytes().size()))
        .second;
  };
  EXPECT_TRUE(add(key.TlsPsk()));
  EXPECT_TRUE(add(key.PairKey(1, 0, 1)));
  EXPECT_TRUE(add(key.PairKey(2, 0, 1)));
  EXPECT_TRUE(add(key.PairKey(1, 0, 11)));
  EXPECT_TRUE(add(key.PairKey(1, 1, 10)));
  EXPECT_FALSE(add(key.PairKey(1, 1, 0)));
  EXPECT_NE(key.Identity(), JobKey::Generate().value().Identity());
  EXPECT_EQ(key.Identity().find(hex_.substr(0, 8)), std::string::npos);
}

// RFC 4231, test case 1 with the key padded by zeros, which HMAC does itself.
TEST(HmacSha256, AgreesWithTheRfc) {
  std::string key_bytes(20, '\x0b');
  key_bytes.resize(32, '\0');
  const SecretKey key({reinterpret_cast<const uint8_t*>(key_bytes.data()), key_bytes.size()});
  const std::string text = "Hi There";
  const auto mac = HmacSha256(key, {{reinterpret_cast<const uint8_t*>(text.data()), 3},
                                    {reinterpret_cast<const uint8_t*>(text.data()) + 3, 5}});
  EXPECT_EQ(absl::BytesToHexString(
                absl::string_view(reinterpret_cast<const char*>(mac.data()), mac.size())),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

// RFC 5869: extract with the salt, then expand one block.
TEST_F(JobKeyTest, DerivationIsHkdf) {
  const JobKey key = JobKey::FromFile(File(raw_, 0600)).value();
  std::string salt = "dtrain job key v1";
  salt.resize(32, '\0');
  const SecretKey salt_key({reinterpret_cast<const uint8_t*>(salt.data()), salt.size()});
  const SecretKey extracted(HmacSha256(salt_key, {key.secret_bytes()}));
  const std::string info = "a purpose\x01";
  const auto expanded =
      HmacSha256(extracted, {{reinterpret_cast<const uint8_t*>(info.data()), info.size()}});
  EXPECT_TRUE(ConstantTimeEqual(expanded, key.Derive("a purpose").bytes()));
}

TEST(SecretKey, IsZeroedWhenItDies) {
  alignas(SecretKey) unsigned char memory[sizeof(SecretKey)];
  const std::string bytes(32, 'k');
  auto* const key =
      new (memory) SecretKey({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  ASSERT_EQ(std::count(std::begin(memory), std::end(memory), 'k'), 32);
  key->~SecretKey();
  // Read through volatile, because the compiler may assume that dead storage is never read.
  const volatile unsigned char* const after = memory;
  EXPECT_TRUE(std::all_of(after, after + sizeof(memory), [](unsigned char c) { return c == 0; }));
}

}  // namespace
}  // namespace dtrain::comm::job_key_test
