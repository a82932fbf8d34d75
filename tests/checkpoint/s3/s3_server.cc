#include "tests/checkpoint/s3/s3_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/unique_fd.h"
#include "checkpoint/commit/nonce.h"
#include "checkpoint/storage/s3/digest.h"
#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/s3/signature.h"
#include "tests/testing/ports.h"

namespace dtrain::checkpoint::s3 {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

// Two identities: one that may do all, one that may only read.
std::string SeaweedIdentities() {
  return absl::StrCat(R"({"identities": [{"name": "writer", "credentials": [{"accessKey": ")",
                      S3Server::kAccessKey, R"(", "secretKey": ")", S3Server::kSecretKey,
                      R"("}], "actions": ["Admin", "Read", "List", "Tagging", "Write"]},
 {"name": "reader", "credentials": [{"accessKey": ")",
                      S3Server::kReaderKey, R"(", "secretKey": ")", S3Server::kReaderSecret,
                      R"("}], "actions": ["Read", "List"]}]})");
}

std::vector<std::string> SeaweedCommand(const std::string& folder, int port) {
  const std::string weed = std::filesystem::path(S3_PYTHON).parent_path() / "weed";
  const auto free = [] { return absl::StrCat(test_ports::UnusedPort()); };
  return {weed,
          "server",
          "-ip=127.0.0.1",
          "-ip.bind=127.0.0.1",
          absl::StrCat("-dir=", folder),
          absl::StrCat("-master.port=", free()),
          absl::StrCat("-master.port.grpc=", free()),
          "-master.volumeSizeLimitMB=64",
          absl::StrCat("-volume.port=", free()),
          absl::StrCat("-volume.port.grpc=", free()),
          "-volume.max=100",
          absl::StrCat("-filer.port=", free()),
          absl::StrCat("-filer.port.grpc=", free()),
          absl::StrCat("-filer.localSocket=", folder, "/filer.sock"),
          "-s3",
          absl::StrCat("-s3.port=", port),
          absl::StrCat("-s3.port.grpc=", free()),
          "-s3.port.iceberg=0",  // Else at a fixed port: no second server could start beside it.
          "-s3.port.lance=0",
          absl::StrCat("-s3.localSocket=", folder, "/s3.sock"),
          absl::StrCat("-s3.config=", folder, "/identities.json")};
}

// The code of a reply to a signed PUT of the bucket; 0: nothing answers.
int MakeBucket(HttpTransport& transport, const S3Server& server) {
  RequestToSign to_sign;
  to_sign.method = "PUT";
  to_sign.path = absl::StrCat("/", S3Server::kBucket);
  to_sign.payload_sha256 = Sha256Hex({});
  SigningScope scope;
  scope.time = AmzTime(absl::Now());
  scope.region = "us-east-1";
  to_sign.headers = {{"x-amz-content-sha256", to_sign.payload_sha256}, {"x-amz-date", scope.time}};
  HttpRequest request;
  request.method = "PUT";
  request.url = absl::StrCat(server.endpoint(), to_sign.path);
  request.headers = to_sign.headers;
  to_sign.headers.emplace_back("host", absl::StrCat("127.0.0.1:", server.port()));
  request.headers.emplace_back(
      "Authorization",
      Authorization(to_sign, scope, {S3Server::kAccessKey, S3Server::kSecretKey, ""}));
  request.deadline = Deadline::After(absl::Seconds(10));
  const auto reply = transport.Perform(request);
  return reply.ok() ? reply->code : 0;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const Environment& environment,
                           const std::string& log_path) {
  std::vector<std::string> arguments = command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  const UniqueFd log(open(log_path.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600));
  DT_CHECK(log.valid()) << log_path;
  pid_ = fork();
  DT_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log.get(), STDOUT_FILENO);
    dup2(log.get(), STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
}

ChildProcess::~ChildProcess() { Kill(); }

bool ChildProcess::Running() {
  if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) {
    pid_ = -1;
  }
  return pid_ > 0;
}

void ChildProcess::Kill() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

int ChildProcess::Wait() {
  if (pid_ > 0) {
    waitpid(pid_, &status_, 0);
    pid_ = -1;
  }
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
}

S3Server& S3Server::Of(Kind kind) {
  // Destroyed at the end of the process, and so are the server's files.
  static std::unique_ptr<S3Server> servers[2];
  std::unique_ptr<S3Server>& server = servers[kind == Kind::kMoto ? 0 : 1];
  if (server == nullptr) {
    server.reset(new S3Server(kind));
  }
  return *server;
}

S3Server::S3Server(Kind kind) : kind_(kind), port_(test_ports::UnusedPort()) {
  Environment environment = ReadEnvironment();
  if (kind == Kind::kSeaweed) {
    DT_CHECK_OK(WriteFileAtomic(folder_.path() + "/identities.json", SeaweedIdentities()));
  }
  const std::vector<std::string> command =
      kind == Kind::kMoto ? std::vector<std::string>{S3_PYTHON,   "-m", "moto.server",      "-H",
                                                     "127.0.0.1", "-p", absl::StrCat(port_)}
                          : SeaweedCommand(folder_.path(), port_);
  process_ = std::make_unique<ChildProcess>(command, environment, folder_.path() + "/log");
  WaitUntilReady();
}

void S3Server::WaitUntilReady() {
  const auto transport = MakeCurlTransport("");
  DT_CHECK_OK(transport.status());
  const Deadline deadline = Deadline::After(absl::Seconds(60));
  int code = 0;
  while (code != 200 && code != 409) {
    const std::string log = *ReadFile(folder_.path() + "/log");
    DT_CHECK(process_->Running()) << Name(kind_) << " has ended: " << log;
    DT_CHECK(!deadline.Expired()) << Name(kind_) << " does not start, code " << code << ": " << log;
    absl::SleepFor(absl::Milliseconds(50));
    code = MakeBucket(**transport, *this);
  }
}

std::string S3Server::endpoint() const { return absl::StrCat("http://127.0.0.1:", port_); }

std::string S3Server::NewUrl() const {
  return absl::StrCat("s3://", kBucket, "/", RandomNonce(), "/run");
}

Environment WriterEnvironment(const std::string& endpoint) {
  return {{"AWS_ACCESS_KEY_ID", S3Server::kAccessKey},
          {"AWS_SECRET_ACCESS_KEY", S3Server::kSecretKey},
          {"AWS_ENDPOINT_URL_S3", endpoint},
          {"AWS_EC2_METADATA_DISABLED", "true"},
          {"PATH", "/usr/bin:/bin"}};
}

S3Options OptionsOf(const std::string& endpoint) {
  S3Options options;
  options.environment = WriterEnvironment(endpoint);
  options.part_bytes = 5 << 20;
  options.backoff_first = absl::Milliseconds(5);
  options.backoff_max = absl::Milliseconds(100);
  return options;
}

std::vector<std::string> FilesBelow(Storage& storage, const std::string& path) {
  const auto entries = storage.List(path);
  DT_CHECK(entries.ok() || absl::IsNotFound(entries.status())) << entries.status().ToString();
  std::vector<std::string> files;
  for (const Storage::Entry& entry : entries.ok() ? *entries : std::vector<Storage::Entry>()) {
    const std::string child = path.empty() ? entry.name : absl::StrCat(path, "/", entry.name);
    const std::vector<std::string> below =
        entry.is_directory ? FilesBelow(storage, child) : std::vector<std::string>{child};
    files.insert(files.end(), below.begin(), below.end());
  }
  return files;
}

std::unique_ptr<Storage> OpenOrDie(const std::string& url, const S3Options& options) {
  auto storage = OpenS3Storage(url, options);
  DT_CHECK_OK(storage.status());
  return *std::move(storage);
}

}  // namespace dtrain::checkpoint::s3
