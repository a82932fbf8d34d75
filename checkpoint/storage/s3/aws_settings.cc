#include "checkpoint/storage/s3/aws_settings.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"

namespace dtrain::checkpoint::s3 {
namespace {

constexpr size_t kAwsFileBytesMax = 1 << 20;
constexpr char kDefaultRegion[] = "us-east-1";

// The first text that is not empty.
std::string FirstOf(std::initializer_list<std::string> texts) {
  for (const std::string& text : texts) {
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

std::string ValueOf(const AwsProfile& profile, const std::string& name) {
  const auto found = profile.find(name);
  return found == profile.end() ? "" : found->second;
}

// The profiles of the file at `path`; none when it is not there.
absl::StatusOr<std::map<std::string, AwsProfile>> ReadAwsFile(const std::string& path,
                                                              bool is_config) {
  if (path.empty() || !FileExists(path)) {
    return std::map<std::string, AwsProfile>();
  }
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kAwsFileBytesMax));
  return ParseAwsFile(text, is_config);
}

std::string PathOfAwsFile(const Environment& environment, const std::string& named,
                          const char* name_at_home) {
  const std::string home = Lookup(environment, "HOME");
  return FirstOf({named, home.empty() ? "" : absl::StrCat(home, "/.aws/", name_at_home)});
}

absl::Status CheckEndpoint(const std::string& endpoint) {
  absl::string_view host = endpoint;
  const bool http = absl::ConsumePrefix(&host, "https://") || absl::ConsumePrefix(&host, "http://");
  // The text before an '@' may hold a password, so the text is not repeated.
  if (absl::StrContains(host, "@")) {
    return absl::InvalidArgumentError(
        "the endpoint of the object store holds a user name; want http(s)://HOST:PORT, and keys in "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  const bool plain = std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '?' && c != '#' && c != '/';
  });
  if (!http || host.empty() || !plain) {
    return absl::InvalidArgumentError(absl::StrCat("the endpoint \"", endpoint,
                                                   "\" of the object store is not of the form "
                                                   "http(s)://HOST or http(s)://HOST:PORT"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Lookup(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::map<std::string, AwsProfile> ParseAwsFile(absl::string_view text, bool is_config) {
  std::map<std::string, AwsProfile> profiles;
  std::string section;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(line);
    if (stripped.empty() || stripped[0] == '#' || stripped[0] == ';') {
      continue;
    }
    if (stripped.front() == '[') {
      absl::string_view name = stripped.substr(1, stripped.find(']') - 1);
      name = absl::StripAsciiWhitespace(name);
      const bool is_profile =
          !is_config || absl::ConsumePrefix(&name, "profile ") || name == "default";
      section = is_profile ? std::string(absl::StripAsciiWhitespace(name)) : "";
      continue;
    }
    const size_t equals = stripped.find('=');
    const bool nested = absl::ascii_isspace(static_cast<unsigned char>(line.front()));
    if (section.empty() || nested || equals == absl::string_view::npos) {
      continue;
    }
    profiles[section]
            [absl::AsciiStrToLower(absl::StripAsciiWhitespace(stripped.substr(0, equals)))] =
                std::string(absl::StripAsciiWhitespace(stripped.substr(equals + 1)));
  }
  return profiles;
}

absl::StatusOr<ProfileFound> FindProfile(const Environment& environment) {
  ProfileFound found;
  found.name = Lookup(environment, "AWS_PROFILE");
  found.named = !found.name.empty();
  if (!found.named) {
    found.name = "default";
  }
  const std::string credentials_path =
      PathOfAwsFile(environment, Lookup(environment, "AWS_SHARED_CREDENTIALS_FILE"), "credentials");
  const std::string config_path =
      PathOfAwsFile(environment, Lookup(environment, "AWS_CONFIG_FILE"), "config");
  DT_ASSIGN_OR_RETURN(const auto credentials, ReadAwsFile(credentials_path, /*is_config=*/false));
  DT_ASSIGN_OR_RETURN(const auto config, ReadAwsFile(config_path, /*is_config=*/true));
  bool known = false;
  for (const auto* const file : {&credentials, &config}) {  // The first value of a name stays.
    if (const auto profile = file->find(found.name); profile != file->end()) {
      known = true;
      found.values.insert(profile->second.begin(), profile->second.end());
    }
  }
  if (found.named && !known) {
    return absl::NotFoundError(absl::StrCat("AWS_PROFILE names the profile \"", found.name,
                                            "\", which neither ", credentials_path, " nor ",
                                            config_path, " has"));
  }
  return found;
}

absl::StatusOr<S3Settings> ResolveSettings(const S3Url& url, const S3Options& options,
                                           const Environment& environment,
                                           const AwsProfile& profile) {
  S3Settings settings;
  settings.bucket = url.bucket;
  settings.region = FirstOf({options.region, Lookup(environment, "AWS_REGION"),
                             Lookup(environment, "AWS_DEFAULT_REGION"), ValueOf(profile, "region"),
                             kDefaultRegion});
  const bool plain = std::all_of(settings.region.begin(), settings.region.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
  });
  if (!plain) {
    return absl::InvalidArgumentError(
        absl::StrCat("the region \"", settings.region, "\" is none; want a name like us-east-1"));
  }
  settings.endpoint =
      FirstOf({options.endpoint, Lookup(environment, "AWS_ENDPOINT_URL_S3"),
               Lookup(environment, "AWS_ENDPOINT_URL"), ValueOf(profile, "endpoint_url")});
  const bool named = !settings.endpoint.empty();
  if (!named) {
    settings.endpoint = absl::StrCat("https://s3.", settings.region, ".amazonaws.com",
                                     absl::StartsWith(settings.region, "cn-") ? ".cn" : "");
  }
  while (!settings.endpoint.empty() && settings.endpoint.back() == '/') {
    settings.endpoint.pop_back();
  }
  DT_RETURN_IF_ERROR(CheckEndpoint(settings.endpoint));
  // HTTP leaves the usual port out of the host that is signed.
  const bool https = absl::StartsWith(settings.endpoint, "https://");
  settings.endpoint = std::string(absl::StripSuffix(settings.endpoint, https ? ":443" : ":80"));
  settings.path_style = options.path_style.value_or(named || absl::StrContains(url.bucket, "."));
  settings.ca_bundle = Lookup(environment, "AWS_CA_BUNDLE");
  return settings;
}

}  // namespace dtrain::checkpoint::s3
