// Tells whether output goes to a terminal on which lines may be rewritten in place. Thread-safe.
#pragma once

namespace dtrain {

// Whether `fd` is a terminal that understands control sequences. One that says TERM=dumb (the shell
// of an editor, some CI systems) would show them as text. Reads the environment.
bool IsTerminal(int fd);

}  // namespace dtrain
