#include "launcher/hosts/node_messages.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "base/version.h"

namespace dtrain::launcher {
namespace {

Json Packed(const std::vector<std::string>& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) {
    list.push_back(absl::Base64Escape(text));
  }
  return list;
}

// Reads members of one object; the first error is kept.
class Members {
 public:
  Members(const Json& json, const char* what) : json_(json), what_(what) {}

  std::string Text(const char* name) {
    const auto found = json_.find(name);
    if (found == json_.end() || !found->is_string()) {
      return Fail(name);
    }
    return Unpacked(*found, name);
  }
  std::vector<std::string> Texts(const char* name) {
    const auto found = json_.find(name);
    std::vector<std::string> texts;
    if (found == json_.end() || !found->is_array()) {
      Fail(name);
      return texts;
    }
    for (const Json& item : *found) {
      texts.push_back(item.is_string() ? Unpacked(item, name) : Fail(name));
    }
    return texts;
  }
  int Number(const char* name, int low, int high) {
    const auto found = json_.find(name);
    const auto value = found != json_.end() && found->is_number_integer() ? found->get<int64_t>()
                                                                          : int64_t{low} - 1;
    if (value < low || value > high) {
      Fail(name);
      return low;
    }
    return static_cast<int>(value);
  }
  const absl::Status& status() const { return status_; }

 private:
  std::string Unpacked(const Json& item, const char* name) {
    std::string text;
    return absl::Base64Unescape(item.get<std::string>(), &text) ? text : Fail(name);
  }
  std::string Fail(const char* name) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(what_, " is malformed: ", name));
    }
    return "";
  }

  const Json& json_;
  const char* what_;
  absl::Status status_;
};

absl::StatusOr<Json> ParseObject(absl::string_view text, const char* what) {
  DT_ASSIGN_OR_RETURN(Json json, ParseJson(text, what));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is malformed: no object"));
  }
  return json;
}

}  // namespace

std::string JobMessage::Encode() const {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) {
    variables.push_back(name);
    variables.push_back(value);
  }
  return DumpJson(Json{{"flags", Packed(flags)},
                       {"program", absl::Base64Escape(program)},
                       {"arguments", Packed(arguments)},
                       {"environment", Packed(variables)},
                       {"directory", absl::Base64Escape(directory)},
                       {"host", absl::Base64Escape(host)},
                       {"nodes", nodes},
                       {"nodes_min", nodes_min},
                       {"node_rank", node_rank},
                       {"ranks", ranks},
                       {"token", absl::Base64Escape(token)}});
}

absl::StatusOr<JobMessage> JobMessage::Parse(absl::string_view text) {
  constexpr int kNodesMax = 65536;
  constexpr char kWhat[] = "the job's message";
  DT_ASSIGN_OR_RETURN(const Json json, ParseObject(text, kWhat));
  Members members(json, kWhat);
  JobMessage job;
  job.flags = members.Texts("flags");
  job.program = members.Text("program");
  job.arguments = members.Texts("arguments");
  const std::vector<std::string> variables = members.Texts("environment");
  for (size_t i = 0; i + 1 < variables.size(); i += 2) {
    job.environment[variables[i]] = variables[i + 1];
  }
  job.directory = members.Text("directory");
  job.host = members.Text("host");
  job.nodes = members.Number("nodes", 1, kNodesMax);
  job.nodes_min = members.Number("nodes_min", 1, job.nodes);
  const bool has_spares = job.nodes_min < job.nodes;
  job.node_rank = members.Number("node_rank", 0, (has_spares ? kNodesMax : job.nodes) - 1);
  job.ranks = members.Number("ranks", 1, kNodesMax);
  job.token = members.Text("token");
  DT_RETURN_IF_ERROR(members.status());
  return job;
}

std::string HelloMessage::Encode() const {
  return DumpJson(Json{{"version", absl::Base64Escape(version)},
                       {"program", absl::Base64Escape(program)},
                       {"digest", absl::Base64Escape(digest)},
                       {"address", absl::Base64Escape(address)},
                       {"client_address", absl::Base64Escape(client_address)},
                       {"error", absl::Base64Escape(error)}});
}

absl::StatusOr<HelloMessage> HelloMessage::Parse(absl::string_view text) {
  constexpr char kWhat[] = "the agent's greeting";
  DT_ASSIGN_OR_RETURN(const Json json, ParseObject(text, kWhat));
  Members members(json, kWhat);
  HelloMessage hello;
  hello.version = members.Text("version");
  hello.program = members.Text("program");
  hello.digest = members.Text("digest");
  hello.address = members.Text("address");
  hello.client_address = members.Text("client_address");
  hello.error = members.Text("error");
  DT_RETURN_IF_ERROR(members.status());
  return hello;
}

std::string OwnVersion() {
  return kCommit[0] == '\0' ? kVersion : absl::StrCat(kVersion, " (", kCommit, ")");
}

}  // namespace dtrain::launcher
