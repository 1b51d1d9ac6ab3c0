#include "worker_lib/serialization/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/file_calls.h"
#include "base/rng.h"
#include "tests/support/read_file.h"
#include "tests/support/sanitized.h"
#include "tests/support/scoped_file_calls.h"
#include "tests/support/temporary_directory.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::listing;
using testing_support::read_file;
using testing_support::TemporaryDirectory;

std::string random_text(std::size_t bytes) {
  Rng rng(7);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(rng.next());
  return text;
}

TEST(AtomicFile, HasNoNameUntilItIsCommitted) {
  const TemporaryDirectory temporary;
  {
    AtomicFile file(temporary / "state.pt");
    file.write("text", 4);
    EXPECT_THAT(listing(temporary.path()), testing::Not(testing::Contains("state.pt")));
  }
  EXPECT_THAT(listing(temporary.path()), IsEmpty());
}

TEST(AtomicFile, DoesNotAppearUnlessItHasTheExpectedDigest) {
  const TemporaryDirectory temporary;
  for (const bool is_expected : {false, true}) {
    AtomicFile file(temporary / "state.pt");
    file.write("text", 4);
    const Result<WrittenFile> written = file.commit(sha256_hex(is_expected ? "text" : "test"));
    ASSERT_EQ(written.has_value(), is_expected);
    if (!written) {
      EXPECT_EQ(written.error().kind, ErrorKind::kCorrupt);
    }
    const auto names = listing(temporary.path());
    EXPECT_EQ(std::ranges::count(names, std::string("state.pt")), is_expected ? 1 : 0);
  }
}

TEST(AtomicFile, WhatWasWrittenMayChangeAtOnce) {
  const TemporaryDirectory temporary;
  const std::string small = random_text(3000), large = random_text(5 << 20);
  AtomicFile file(temporary / "state.pt");
  std::string all;
  for (int i = 0; i < 3; ++i)
    for (const std::string& piece : {small, large}) {
      std::string text = piece;
      file.write(text.data(), text.size());
      text.assign(text.size(), 'x');
      all += piece;
    }
  const Result<WrittenFile> written = file.commit();
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_EQ(written->bytes, all.size());
  EXPECT_EQ(written->sha256, sha256_hex(all));
  const std::uint64_t step = written->chain_bytes;
  EXPECT_EQ(written->chain.size(), kChainDigits * chain_states(all.size(), step));
  for (std::uint64_t at = step; at < all.size(); at += step) {
    ChainedSha256 digest(state_after(*written, at), at);
    digest.add(all.data() + at, all.size() - at);
    EXPECT_EQ(digest.hex(), sha256_hex(all)) << at;
  }
  EXPECT_TRUE(read_file(temporary / "state.pt") == all);
  EXPECT_THAT(listing(temporary.path()), ElementsAre("state.pt"));
}

// Tests whole buffers, one byte less and one byte more. File systems with and without direct
// writes (O_DIRECT) are tested, and short writes.
TEST(AtomicFile, OfAnySizeIsWholeOnAnyFileSystem) {
  struct OnlyThroughTheCache : FileCalls {
    ssize_t write(int fd, const void* data, std::size_t bytes) override {
      if ((::fcntl(fd, F_GETFL) & O_DIRECT) == 0) return FileCalls::write(fd, data, bytes);
      ++refused;
      return errno = EINVAL, -1;
    }
    int refused = 0;
  } only_through_the_cache;
  struct ShortWrites : FileCalls {
    ssize_t write(int fd, const void* data, std::size_t bytes) override {
      return FileCalls::write(fd, data, bytes > 5000 ? bytes / 8192 * 4096 + 4096 : bytes);
    }
  } short_writes;
  FileCalls plain;
  const TemporaryDirectory temporary;
  constexpr std::size_t kBuffer = 4 << 20;
  const std::string longest = random_text(3 * kBuffer + 4097);
  for (FileCalls* calls : {&plain, static_cast<FileCalls*>(&only_through_the_cache),
                           static_cast<FileCalls*>(&short_writes)}) {
    const ScopedFileCalls scope(*calls);
    std::vector<std::size_t> sizes{0, kBuffer + 1, 3 * kBuffer + 4097};
    if (!testing_support::kSanitized) {  // under a sanitizer each takes seconds
      sizes.insert(sizes.end(), {kBuffer - 1, kBuffer, 2 * kBuffer, 3 * kBuffer + 4096});
    }
    for (const std::size_t size : sizes) {
      const std::string text = longest.substr(0, size);
      AtomicFile file(temporary / "state.pt");
      file.write(text.data(), text.size());
      const Result<WrittenFile> written = file.commit();
      ASSERT_TRUE(written) << written.error().message();
      ASSERT_EQ(written->bytes, size);
      ASSERT_EQ(written->sha256, sha256_hex(text));
      ASSERT_TRUE(read_file(temporary / "state.pt") == text) << size << " bytes";
    }
  }
  EXPECT_GT(only_through_the_cache.refused, 0);
}

}  // namespace
}  // namespace ddprun
