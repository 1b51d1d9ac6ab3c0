#include "base/worker_page_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <limits>
#include <string>

#include "base/pidfd.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using Access = MappedPages::Access;

bool is_page(PagePlace place) { return MappedPages::map(place, Access::kRead).has_value(); }

TEST(WorkerPageFile, NewPagesAreEmptyAndSeenByWhoMapsThemToo) {
  const auto made = make_page_file("pages", 2);
  ASSERT_TRUE(made) << made.error().message();
  const auto seen =
      MappedPages::map({.file = made->file.get(), .offset = kWorkerPageBytes}, Access::kRead);
  ASSERT_TRUE(seen);
  EXPECT_TRUE((*seen)[0].is_ours());
  EXPECT_EQ((*seen)[0].calls, 0u);
  made->pages[1].calls = 7;
  EXPECT_EQ((*seen)[0].calls, 7u);
  EXPECT_EQ(made->pages[0].calls, 0u);
}

TEST(WorkerPageFile, ItKeepsItsSizeAndIsClosedOnExec) {
  const auto made = make_page_file("pages", 1);
  ASSERT_TRUE(made);
  EXPECT_EQ(ftruncate(made->file.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(made->file.get(), F_GETFD), FD_CLOEXEC);
}

TEST(WorkerPageFile, WhatIsNoPageIsNotMapped) {
  const auto made = make_page_file("pages", 2);
  ASSERT_TRUE(made);
  const int file = made->file.get();
  EXPECT_FALSE(is_page({}));
  EXPECT_FALSE(is_page({.file = file, .offset = 2 * kWorkerPageBytes})) << "behind the end";
  EXPECT_FALSE(is_page({.file = file, .offset = std::numeric_limits<std::size_t>::max()}));
  EXPECT_FALSE(is_page({.file = file, .offset = 100})) << "no page begins there";
  EXPECT_FALSE(is_page({.file = file, .offset = 4096})) << "nor there";
  EXPECT_FALSE(MappedPages::map({.file = file}, Access::kRead, 3)) << "there are two";
  EXPECT_FALSE(is_page({.file = pidfd_of(getpid()).get()}));
  made->pages[1].version = kWorkerPageVersion + 1;
  EXPECT_FALSE(is_page({.file = file, .offset = kWorkerPageBytes})) << "of another version";
  EXPECT_FALSE(MappedPages::map({.file = file}, Access::kRead, 2));
  EXPECT_TRUE(is_page({.file = file}));
}

// SIGBUS kills a process that reads such a file after the file became shorter.
TEST(WorkerPageFile, WhatCouldBeMadeSmallerIsNotMapped) {
  const UniqueFd loose(memfd_create("pages", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), kWorkerPageBytes), 0);
  const std::uint32_t head[2] = {kWorkerPageMagic, kWorkerPageVersion};
  ASSERT_EQ(pwrite(loose.get(), head, sizeof head, 0), static_cast<ssize_t>(sizeof head));
  EXPECT_FALSE(is_page({.file = loose.get()}));
  ASSERT_EQ(fcntl(loose.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(is_page({.file = loose.get()})) << "it was for the seal alone";

  const testing_support::TemporaryDirectory directory;
  const std::string path = directory.write("pages", std::string(kWorkerPageBytes, 0));
  const UniqueFd on_disk(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(pwrite(on_disk.get(), head, sizeof head, 0), static_cast<ssize_t>(sizeof head));
  EXPECT_FALSE(is_page({.file = on_disk.get()}));
}

TEST(WorkerPageFile, WhereNoneCanBeMadeThatIsAnErrorAndNobodyIsKilled) {
  {
    const testing_support::FileSizeLimit small(kWorkerPageBytes - 1);
    static volatile std::sig_atomic_t signals;
    signals = 0;
    std::signal(SIGXFSZ, [](int) { signals = signals + 1; });
    const auto made = make_page_file("pages", 1);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().sys_errno, EFBIG);
    EXPECT_EQ(signals, 0) << "which kills who does not expect it";
  }
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto made = make_page_file("pages", 1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().sys_errno, EMFILE);
}

}  // namespace
}  // namespace ddprun
