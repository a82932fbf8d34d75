// Where lines may be rewritten in place.
#pragma once

namespace dtrain {

// Whether `fd` is a terminal that understands control sequences. One that says TERM=dumb (the shell
// of an editor, some CI systems) would show them as text. Reads the environment. Thread-safe.
bool IsTerminal(int fd);

}  // namespace dtrain
