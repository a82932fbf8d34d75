#include "base/system/constant_pages.h"

#include <link.h>
#include <unistd.h>

#include <cstddef>

namespace dtrain {
namespace {

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// A linker puts constants at the beginning of the read-only segment behind the code, and the tables
// for exceptions, which start with PT_GNU_EH_FRAME, behind them.
Range ConstantsOf(const dl_phdr_info& object) {
  uintptr_t tables = 0;
  for (size_t i = 0; i < object.dlpi_phnum; ++i) {
    if (object.dlpi_phdr[i].p_type == PT_GNU_EH_FRAME) {
      tables = object.dlpi_addr + object.dlpi_phdr[i].p_vaddr;
    }
  }
  for (size_t i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[i];
    const uintptr_t begin = object.dlpi_addr + segment.p_vaddr;
    const uintptr_t end = begin + segment.p_filesz;
    // Where a linker puts constants into the segment of the code, they lie there as well.
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) == 0 && begin <= tables &&
        tables < end) {
      return {begin, tables};
    }
  }
  return {};
}

int MapThoseOf(dl_phdr_info* object, size_t, void* total) {
  const Range constants = ConstantsOf(*object);
  const auto bytes = static_cast<int64_t>(constants.end - constants.begin);
  if (bytes > kConstantsMax) {
    return 0;
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (uintptr_t at = constants.begin; at < constants.end; at = (at / page + 1) * page) {
    static_cast<void>(*reinterpret_cast<const volatile char*>(at));
  }
  *static_cast<int64_t*>(total) += bytes;
  return 0;
}

}  // namespace

int64_t MapConstantPages() {
  int64_t bytes = 0;
  dl_iterate_phdr(MapThoseOf, &bytes);
  return bytes;
}

}  // namespace dtrain
