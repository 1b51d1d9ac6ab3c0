// Worker pages (base/worker_page.h) as memory that processes share: an agent makes a file of those
// of all its workers, a worker that has no agent makes one for itself, and whoever is given such a
// file maps the pages in it. It is a memory file: no name in the file system, nothing to leave
// behind.
//
// Owned resources, unmapped and closed with the objects. Any thread.
#pragma once

#include <cstddef>
#include <optional>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/worker_page.h"

namespace ddprun {

// Where a page is: in a file that somebody else holds open. file: -1: nowhere.
struct PagePlace {
  int file = -1;
  std::size_t offset = 0;
};

struct PageFile;

class MappedPages {
 public:
  enum class Access { kRead, kWrite };

  // `count` pages from `place` on. nullopt: there are not so many, they are of another version,
  // cannot be mapped, or the file may yet be made smaller, which would kill whoever looks then.
  static std::optional<MappedPages> map(PagePlace place, Access access, std::size_t count = 1);

  MappedPages(MappedPages&& other) noexcept;
  MappedPages& operator=(MappedPages&& other) noexcept;
  ~MappedPages();

  // To be written only where they were mapped for that.
  WorkerPage& operator[](std::size_t index) const { return pages_[index]; }
  std::size_t count() const { return count_; }

 private:
  friend Result<PageFile> make_page_file(const char* name, std::size_t count);
  MappedPages(WorkerPage* pages, std::size_t count) : pages_(pages), count_(count) {}

  WorkerPage* pages_;  // null: moved from
  std::size_t count_;
};

struct PageFile {
  UniqueFd file;
  MappedPages pages;
};

// As /proc/<pid>/fd shows the file of a worker that has made its page itself.
inline constexpr const char* kOwnPageName = "ddprun-worker";

// New pages, as if nobody had ever written; the file is closed on exec and keeps its size. An error
// of the system's.
Result<PageFile> make_page_file(const char* name, std::size_t count);

}  // namespace ddprun
