#include "base/console/terminal.h"

#include <unistd.h>

#include "base/job_env.h"

namespace dtrain {

bool IsTerminal(int fd) { return isatty(fd) != 0 && !TerminalIsDumb(ReadEnvironment()); }

}  // namespace dtrain
