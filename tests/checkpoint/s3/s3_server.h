// Servers of the S3 protocol for tests: moto, in Python, and SeaweedFS, which checks signatures.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/job_env.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::s3 {

// A child process that ends with this object, and with this process however that ends.
class ChildProcess {
 public:
  // Its output goes to `log_path`.
  ChildProcess(const std::vector<std::string>& command, const Environment& environment,
               const std::string& log_path);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  bool Running();
  void Kill();  // SIGKILL, and waits for the end.
  int Wait();   // Its exit code; -1 when a signal ended it.

 private:
  int pid_ = -1;
  int status_ = 0;
};

class S3Server {
 public:
  enum class Kind { kMoto, kSeaweed };
  static constexpr Kind kKinds[] = {Kind::kMoto, Kind::kSeaweed};
  static constexpr char kBucket[] = "checkpoints";
  static constexpr char kAccessKey[] = "AKIADTRAINTESTWRITER";
  static constexpr char kSecretKey[] = "canary/secret+of/the/writer";
  // SeaweedFS lets this one only read.
  static constexpr char kReaderKey[] = "AKIADTRAINTESTREADER";
  static constexpr char kReaderSecret[] = "canary/secret+of/the/reader";

  // The server of this kind, started at the first call, with an empty bucket. It ends with this
  // process.
  static S3Server& Of(Kind kind);
  static std::string Name(Kind kind) { return kind == Kind::kMoto ? "moto" : "SeaweedFS"; }

  int port() const { return port_; }
  std::string endpoint() const;
  // A prefix in the bucket that no other test uses.
  std::string NewUrl() const;

 private:
  explicit S3Server(Kind kind);
  void WaitUntilReady();

  const Kind kind_;
  const int port_;
  TemporaryFolder folder_;
  std::unique_ptr<ChildProcess> process_;
};

// The environment of a program that writes to `endpoint`, and nothing else of this process's.
Environment WriterEnvironment(const std::string& endpoint);

// Options for `endpoint`, with waits as short as tests want them.
S3Options OptionsOf(const std::string& endpoint);

// The files below `path`, in all its folders. SeaweedFS shows an empty folder for some seconds
// after its last object was removed.
std::vector<std::string> FilesBelow(Storage& storage, const std::string& path);

// Opens the storage, or ends the test program with the error.
std::unique_ptr<Storage> OpenOrDie(const std::string& url, const S3Options& options);

}  // namespace dtrain::checkpoint::s3
