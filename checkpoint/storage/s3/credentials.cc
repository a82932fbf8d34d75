#include "checkpoint/storage/s3/credentials.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "checkpoint/storage/s3/digest.h"
#include "checkpoint/storage/s3/xml.h"

namespace dtrain::checkpoint::s3 {
namespace {

constexpr absl::Duration kRefreshBefore = absl::Minutes(5);
constexpr size_t kTokenBytesMax = 64 << 10;
constexpr char kContainerHost[] = "http://169.254.170.2";
constexpr char kInstanceHost[] = "http://169.254.169.254";

std::string Text(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::Time Expiry(const std::string& text) {
  absl::Time time;
  std::string error;
  return absl::ParseTime(absl::RFC3339_full, text, &time, &error) ? time : absl::InfiniteFuture();
}

// The reply of a container's endpoint or of the instance's metadata.
absl::StatusOr<Credentials> ParseJsonCredentials(const std::string& text, std::string origin) {
  const auto json = ParseJson(text, origin);
  Credentials credentials;
  if (json.ok() && json->is_object()) {
    credentials.keys = {Text(*json, "AccessKeyId"), Text(*json, "SecretAccessKey"),
                        Text(*json, "Token")};
    credentials.expires = Expiry(Text(*json, "Expiration"));
  }
  if (credentials.keys.access_key_id.empty() || credentials.keys.secret_access_key.empty()) {
    // The reply may hold a secret, so nothing of it is repeated.
    return absl::UnauthenticatedError(absl::StrCat(origin, " replied with no credentials"));
  }
  credentials.origin = std::move(origin);
  return credentials;
}

absl::StatusOr<Credentials> ParseStsReply(const std::string& text) {
  const auto root = ParseXml(text);
  const XmlElement* const result =
      root.ok() ? root->Child("AssumeRoleWithWebIdentityResult") : nullptr;
  const XmlElement* const given = result == nullptr ? nullptr : result->Child("Credentials");
  Credentials credentials;
  if (given != nullptr) {
    credentials.keys = {given->TextOf("AccessKeyId"), given->TextOf("SecretAccessKey"),
                        given->TextOf("SessionToken")};
    credentials.expires = Expiry(given->TextOf("Expiration"));
  }
  if (credentials.keys.access_key_id.empty() || credentials.keys.secret_access_key.empty()) {
    return absl::UnauthenticatedError("the token service replied with no credentials");
  }
  credentials.origin = "web identity";
  return credentials;
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kTokenBytesMax));
  return std::string(absl::StripAsciiWhitespace(text));
}

// Credentials are asked for in the clear only on this machine or its own link.
bool MayAskInTheClear(const std::string& url) {
  for (const char* const host :
       {"http://127.", "http://localhost", "http://[::1]", "http://169.254.170.2",
        "http://169.254.170.23", "http://[fd00:ec2::23]"}) {
    absl::string_view rest = url;
    if (absl::ConsumePrefix(&rest, host) &&
        !absl::StrContains(rest.substr(0, rest.find('/')), "@")) {
      return true;
    }
  }
  return absl::StartsWith(url, "https://");
}

}  // namespace

CredentialProvider::CredentialProvider(Environment environment, ProfileFound profile,
                                       std::string region, HttpTransport& transport, Clock& clock)
    : environment_(std::move(environment)),
      profile_(std::move(profile)),
      region_(std::move(region)),
      transport_(transport),
      clock_(clock) {}

absl::StatusOr<Credentials> CredentialProvider::Get() {
  const std::lock_guard lock(mutex_);
  const absl::Time now = clock_.WallTime();
  if (current_ && now < current_->expires - kRefreshBefore) {
    return *current_;
  }
  absl::StatusOr<Credentials> fetched = Fetch();
  if (fetched.ok()) {
    current_ = *fetched;
  } else if (current_ && now < current_->expires) {
    return *current_;  // They still hold, and the next request asks again.
  }
  return fetched;
}

bool CredentialProvider::Forget() {
  const std::lock_guard lock(mutex_);
  const bool fetched = current_ && current_->expires != absl::InfiniteFuture();
  current_.reset();
  return fetched;
}

absl::StatusOr<Credentials> CredentialProvider::Fetch() {
  Credentials credentials;
  credentials.keys = {Lookup(environment_, "AWS_ACCESS_KEY_ID"),
                      Lookup(environment_, "AWS_SECRET_ACCESS_KEY"),
                      Lookup(environment_, "AWS_SESSION_TOKEN")};
  const bool has_id = !credentials.keys.access_key_id.empty();
  if (has_id != !credentials.keys.secret_access_key.empty()) {
    return absl::UnauthenticatedError(
        absl::StrCat(has_id ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY", " is set, but not ",
                     has_id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID"));
  }
  if (has_id) {
    credentials.origin = "AWS_ACCESS_KEY_ID";
    return credentials;
  }
  DT_ASSIGN_OR_RETURN(const std::optional<Credentials> of_profile, FromProfile());
  if (of_profile) {
    return *of_profile;
  }
  const std::string token_file = Lookup(environment_, "AWS_WEB_IDENTITY_TOKEN_FILE");
  const std::string role = Lookup(environment_, "AWS_ROLE_ARN");
  if (!token_file.empty() && !role.empty()) {
    return FromWebIdentity(token_file, role, Lookup(environment_, "AWS_ROLE_SESSION_NAME"));
  }
  const std::string path = Lookup(environment_, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string url = path.empty() ? Lookup(environment_, "AWS_CONTAINER_CREDENTIALS_FULL_URI")
                                       : absl::StrCat(kContainerHost, path);
  if (!url.empty()) {
    return FromContainer(url);
  }
  absl::StatusOr<Credentials> of_instance =
      absl::EqualsIgnoreCase(Lookup(environment_, "AWS_EC2_METADATA_DISABLED"), "true")
          ? absl::UnavailableError("AWS_EC2_METADATA_DISABLED is set")
          : FromInstance();
  if (!of_instance.ok()) {
    return absl::UnauthenticatedError(absl::StrCat(
        "no credentials were found: AWS_ACCESS_KEY_ID is not set, the profile ", profile_.name,
        " has no keys, no web identity or container endpoint is named, and there is no instance "
        "metadata (",
        of_instance.status().message(),
        "); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`"));
  }
  return of_instance;
}

// Nothing when the profile has no credentials.
absl::StatusOr<std::optional<Credentials>> CredentialProvider::FromProfile() {
  const auto value = [this](const char* name) {
    const auto found = profile_.values.find(name);
    return found == profile_.values.end() ? std::string() : found->second;
  };
  Credentials credentials;
  credentials.keys = {value("aws_access_key_id"), value("aws_secret_access_key"),
                      value("aws_session_token")};
  credentials.origin = absl::StrCat("profile ", profile_.name);
  if (!credentials.keys.access_key_id.empty() && !credentials.keys.secret_access_key.empty()) {
    return credentials;
  }
  if (!value("web_identity_token_file").empty() && !value("role_arn").empty()) {
    DT_ASSIGN_OR_RETURN(credentials,
                        FromWebIdentity(value("web_identity_token_file"), value("role_arn"),
                                        value("role_session_name")));
    return credentials;
  }
  for (const char* const name :
       {"role_arn", "sso_session", "sso_start_url", "credential_process"}) {
    if (!value(name).empty()) {
      return absl::UnauthenticatedError(absl::StrCat(
          "the profile ", profile_.name, " gets its credentials by ", name,
          ", which dtrain does not do; put them into the environment with `aws configure "
          "export-credentials --profile ",
          profile_.name, " --format env`"));
    }
  }
  return std::optional<Credentials>();
}

absl::StatusOr<Credentials> CredentialProvider::FromWebIdentity(const std::string& token_file,
                                                                const std::string& role_arn,
                                                                const std::string& session_name) {
  DT_ASSIGN_OR_RETURN(const std::string token, ReadToken(token_file));
  const std::string named = Lookup(environment_, "AWS_ENDPOINT_URL_STS");
  const std::string general = Lookup(environment_, "AWS_ENDPOINT_URL");
  HttpRequest request;
  request.method = "POST";
  request.url = !named.empty()     ? named
                : !general.empty() ? general
                                   : absl::StrCat("https://sts.", region_, ".amazonaws.com");
  if (!absl::EndsWith(request.url, "/")) {
    request.url.push_back('/');
  }
  request.headers = {{"Content-Type", "application/x-www-form-urlencoded"}};
  const std::string body =
      EncodeQuery({{"Action", "AssumeRoleWithWebIdentity"},
                   {"Version", "2011-06-15"},
                   {"RoleArn", role_arn},
                   {"RoleSessionName", session_name.empty() ? "dtrain" : session_name},
                   {"WebIdentityToken", token}});
  request.body = BytesOf(body);
  DT_ASSIGN_OR_RETURN(const std::string reply,
                      Ask(request, absl::StrCat("the token service at ", request.url)));
  return ParseStsReply(reply);
}

absl::StatusOr<Credentials> CredentialProvider::FromContainer(const std::string& url) {
  if (!MayAskInTheClear(url)) {
    return absl::UnauthenticatedError(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor an address of this machine; "
        "credentials are not fetched from it");
  }
  std::string token = Lookup(environment_, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string token_file = Lookup(environment_, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!token_file.empty()) {
    DT_ASSIGN_OR_RETURN(token, ReadToken(token_file));
  }
  HttpRequest request;
  request.url = url;
  request.never_by_proxy = !absl::StartsWith(url, "https://");
  if (!token.empty()) {
    request.headers.emplace_back("Authorization", token);
  }
  const std::string what = "the container's credentials endpoint";
  DT_ASSIGN_OR_RETURN(const std::string reply, Ask(request, what));
  return ParseJsonCredentials(reply, what);
}

absl::StatusOr<Credentials> CredentialProvider::FromInstance() {
  const std::string named = Lookup(environment_, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  std::string host = named.empty() ? kInstanceHost : named;
  while (!host.empty() && host.back() == '/') {
    host.pop_back();
  }
  const std::string what = "the instance's metadata";
  HttpRequest request;
  request.method = "PUT";
  request.url = absl::StrCat(host, "/latest/api/token");
  request.headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "300"}};
  request.never_by_proxy = true;
  DT_ASSIGN_OR_RETURN(const std::string token, Ask(request, what));
  request.method = "GET";
  request.headers = {{"X-aws-ec2-metadata-token", token}};
  const std::string roles = absl::StrCat(host, "/latest/meta-data/iam/security-credentials/");
  request.url = roles;
  DT_ASSIGN_OR_RETURN(const std::string names, Ask(request, what));
  const std::string role(absl::StripAsciiWhitespace(names.substr(0, names.find('\n'))));
  request.url = absl::StrCat(roles, PercentEncode(role, /*keep_slash=*/false));
  DT_ASSIGN_OR_RETURN(const std::string reply, Ask(request, what));
  return ParseJsonCredentials(reply, what);
}

// The body of a reply 2xx. One try: a service beside this machine answers at once or is not there.
absl::StatusOr<std::string> CredentialProvider::Ask(const HttpRequest& asked,
                                                    const std::string& what) {
  HttpRequest request = asked;
  const bool far = absl::StartsWith(request.url, "https://");
  request.reply_bytes_max = kTokenBytesMax;
  request.connect_timeout = far ? absl::Seconds(5) : absl::Milliseconds(700);
  request.deadline = Deadline::After(far ? absl::Seconds(20) : absl::Seconds(2));
  const absl::StatusOr<HttpReply> reply = transport_.Perform(request);
  if (!reply.ok()) {
    return Annotate(reply.status(), what);
  }
  if (!reply->ok()) {
    return absl::UnauthenticatedError(absl::StrCat(what, " replied with code ", reply->code));
  }
  return reply->body;
}

}  // namespace dtrain::checkpoint::s3
