#include "worker_lib/serialization/core/zip_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/temporary_directory.h"
#include "worker_lib/serialization/core/zip_directory.h"

namespace ddprun {
namespace {

std::string archive_of(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string archive;
  ZipWriter zip([&](const void* data, std::size_t bytes) {
    archive.append(static_cast<const char*>(data), bytes);
  });
  for (const auto& [name, bytes] : records) zip.add(name, bytes);
  zip.finish();
  return archive;
}

TEST(ZipWriter, WhatItWritesIsReadAgain) {
  std::vector<std::pair<std::string, std::string>> records;
  for (std::size_t i = 0; i < 130; ++i)  // every length of name and bytes, modulo the alignment
    records.emplace_back("a/" + std::string(i, 'n'), std::string(i, static_cast<char>(i)));
  const std::string archive = archive_of(records);
  const auto read = read_zip(archive);
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->size(), records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ((*read)[i].name, records[i].first);
    EXPECT_EQ((*read)[i].bytes, records[i].second);
    EXPECT_TRUE(has_right_crc((*read)[i]));
    EXPECT_EQ(((*read)[i].bytes.data() - archive.data()) % 64, 0) << (*read)[i].name;
  }
}

TEST(ZipWriter, AnArchiveOfNothing) {
  const std::string archive = archive_of({});
  const auto read = read_zip(archive);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(read->empty());
}

TEST(ZipWriter, MoreRecordsThan16Bits) {
  std::vector<std::pair<std::string, std::string>> records;
  for (int i = 0; i < 70000; ++i) records.emplace_back(std::to_string(i), "");
  const std::string archive = archive_of(records);
  const auto read = read_zip(archive);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->size(), 70000u);
}

// The record is never touched and the file has a hole for it, so both take no memory.
TEST(ZipWriter, RecordsBeyond4GiB) {
  constexpr std::uint64_t kLarge = (std::uint64_t{5} << 30) + 3;
  const testing_support::TemporaryDirectory temporary;
  const std::string path = temporary / "large";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_GE(fd, 0);
  void* large =
      ::mmap(nullptr, kLarge, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(large, MAP_FAILED);
  std::uint64_t size = 0;
  ZipWriter zip([&](const void* data, std::size_t bytes) {
    if (data != large) {
      EXPECT_EQ(::pwrite(fd, data, bytes, static_cast<off_t>(size)), static_cast<ssize_t>(bytes));
    }
    size += bytes;
  });
  zip.add("a/large", {static_cast<const char*>(large), kLarge}, 7);
  zip.add("a/behind", "12");
  zip.finish();
  ::munmap(large, kLarge);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  ASSERT_NE(memory, MAP_FAILED);
  const auto read = read_zip({static_cast<const char*>(memory), size});
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].bytes.size(), kLarge);
  EXPECT_EQ((*read)[0].crc, 7u);
  EXPECT_EQ((*read)[1].bytes, "12");
  EXPECT_EQ(((*read)[1].bytes.data() - static_cast<const char*>(memory)) % 64, 0);
  EXPECT_TRUE(has_right_crc((*read)[1]));
  ::munmap(memory, size);
}

}  // namespace
}  // namespace ddprun
