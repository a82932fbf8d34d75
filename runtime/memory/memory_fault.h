// Handles faults of code that touches memory which the engine has closed, or a mapped file which
// cannot be read or written. The runtime has one handler of SIGSEGV and SIGBUS, which asks whoever
// closed the memory, or names the file. Other faults go to whoever handled them before.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain {

class MemoryFault {
 public:
  class Listener {
   public:
    // On the thread that touched `at`, inside the signal's handler: that thread stands at an
    // instruction of its own, not in the middle of malloc or of the engine, but its stack may be
    // small. True: the instruction runs again. False: whoever handled faults before is asked.
    virtual bool OnFault(const std::byte* at) = 0;

   protected:
    ~Listener() = default;
  };

  // Until destroyed, faults at [begin, begin + bytes) go to `listener`, which outlives this object.
  MemoryFault(const std::byte* begin, size_t bytes, Listener& listener);
  ~MemoryFault();
  MemoryFault(const MemoryFault&) = delete;
  MemoryFault& operator=(const MemoryFault&) = delete;

  // False: these faults stay bare. The process has too many of them already, or the program has
  // put a handler of its own in the place of this one.
  bool active() const;

  // For OnFault: writes one line made of `texts` to stderr and ends the process.
  [[noreturn]] static void SayAndExit(std::initializer_list<absl::string_view> texts, int code);

 private:
  int slot_ = -1;
};

// Memory that is a file: a failing disk would end the process with a bare SIGBUS.
class FileFault {
 public:
  // Until destroyed, a page of [begin, begin + bytes) that the system cannot read or write ends the
  // process with `line` on stderr and exit code 75. A process may have 256 of them; the others stay
  // bare.
  FileFault(const void* begin, size_t bytes, std::string line);
  ~FileFault();
  FileFault(const FileFault&) = delete;
  FileFault& operator=(const FileFault&) = delete;

 private:
  const std::string line_;
  int slot_ = -1;
};

}  // namespace dtrain
