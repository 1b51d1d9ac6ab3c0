#include "launcher/process/give_back_code.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace ddprun {

void give_back_code() {
  const auto give_back_of = [](dl_phdr_info* object, std::size_t, void*) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = object->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
      // Whole pages only: the rest of a partial page may be data.
      const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
      const std::uintptr_t first = (begin + page - 1) / page * page;
      const std::uintptr_t last = (begin + segment.p_filesz) / page * page;
      if (first < last) {
        madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
      }
    }
    return 0;
  };
  dl_iterate_phdr(give_back_of, nullptr);
}

}  // namespace ddprun
