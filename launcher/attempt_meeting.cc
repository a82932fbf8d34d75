#include "launcher/attempt_meeting.h"

#include "base/json.h"
#include "base/status.h"

namespace dtrain::launcher {

std::string Encode(const Meeting& meeting) {
  return DumpJson(Json{{"port", meeting.store.port},
                       {"run_id", meeting.run_id},
                       {"log_number", meeting.log_number},
                       {"master_port", meeting.master_port},
                       {"begins_job", meeting.begins_job},
                       {"code", static_cast<int>(meeting.error.code())},
                       {"message", std::string(meeting.error.message())}});
}

absl::StatusOr<Meeting> ParseMeeting(absl::string_view text, const std::string& host) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "node 0's meeting point"));
  const auto is_number = [&json](const char* key) {
    return !json.contains(key) || json[key].is_number_integer();
  };
  const auto is_text = [&json](const char* key) {
    return !json.contains(key) || json[key].is_string();
  };
  const bool has_flag = !json.contains("begins_job") || json["begins_job"].is_boolean();
  if (!json.is_object() || !has_flag || !is_number("port") || !is_number("log_number") ||
      !is_number("master_port") || !is_number("code") || !is_text("run_id") ||
      !is_text("message")) {
    return absl::InvalidArgumentError("node 0's meeting point is malformed");
  }
  Meeting meeting;
  meeting.store = {host, json.value("port", 0)};
  meeting.run_id = json.value("run_id", "");
  meeting.log_number = json.value("log_number", 0);
  meeting.master_port = json.value("master_port", 0);
  meeting.begins_job = json.value("begins_job", false);
  if (const int code = json.value("code", 0); code != 0) {
    meeting.error = absl::Status(static_cast<absl::StatusCode>(code), json.value("message", ""));
  }
  return meeting;
}

}  // namespace dtrain::launcher
