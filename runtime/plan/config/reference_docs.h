// Reference pages made from the tables of metrics and of environment variables. Pure; thread-safe.
#pragma once

#include <string>

namespace dtrain::plan {

// docs/METRICS.md, whole.
std::string MetricsMarkdown();
// docs/ENVIRONMENT.md, whole.
std::string EnvironmentMarkdown();

}  // namespace dtrain::plan
