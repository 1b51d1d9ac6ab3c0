// Worker pages (base/worker_page.h) as memory that processes share. An agent makes one file for
// the pages of all its workers; a worker without an agent makes one for itself. A process that
// is given such a file maps the pages in it. It is a memory file: it has no name in the file
// system and leaves nothing there.
//
// The objects own their mappings and descriptors, and unmap and close them. Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "base/mapped_memory.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/worker_page.h"

namespace ddprun {

// PagePlace: the place of a page in a file, which must be held open elsewhere. file: -1: no
// place.
struct PagePlace {
  int file = -1;
  std::size_t offset = 0;
};

struct PageFile;

class MappedPages {
 public:
  enum class Access { kRead, kWrite };

  // Maps `count` pages from `place` on. nullopt: there are fewer pages, they have another
  // version, or they cannot be mapped. Also if the file could still be made smaller, because
  // that would kill a process that reads it then.
  static std::optional<MappedPages> map(PagePlace place, Access access, std::size_t count = 1);

  // Returns a page. It may be written only if it was mapped with kWrite.
  WorkerPage& operator[](std::size_t index) const { return pages_[index]; }
  std::size_t count() const { return pages_.get_deleter().bytes / kWorkerPageBytes; }

 private:
  friend Result<PageFile> make_page_file(const char* name, std::size_t count);
  explicit MappedPages(MappedMemory<WorkerPage> pages) : pages_(std::move(pages)) {}

  MappedMemory<WorkerPage> pages_;
};

struct PageFile {
  UniqueFd file;
  MappedPages pages;
};

// The name of the file of a worker that has made its page itself, as /proc/<pid>/fd shows it.
inline constexpr const char* kOwnPageName = "ddprun-worker";

// Makes new pages, all zero but for magic and version. The file is closed on exec and keeps its
// size. Fails with the system's error.
Result<PageFile> make_page_file(const char* name, std::size_t count);

}  // namespace ddprun
