#include "worker_lib/serialization/core/zip_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/temporary_directory.h"
#include "worker_lib/serialization/core/crc32.h"
#include "worker_lib/serialization/core/zip_directory.h"

namespace ddprun {
namespace {

std::string archive_of(const std::vector<std::pair<std::string, std::string>>& records) {
  ZipWriter zip;
  std::string archive;
  for (const auto& [name, bytes] : records) {
    archive += zip.begin(name, bytes.size());
    EXPECT_EQ(archive.size() % 64, 0u) << name;
    archive += bytes + zip.end(crc32(bytes));
  }
  return archive + zip.finish();
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
  }
}

TEST(ZipWriter, AnArchiveOfNothing) {
  const std::string archive = archive_of({});
  const auto read = read_zip(archive);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(read->empty());
}

TEST(ZipWriter, MoreRecordsThan16Bits) {
  ZipWriter zip;
  std::string archive;
  for (int i = 0; i < 70000; ++i) {
    archive += zip.begin(std::to_string(i), 0);
    archive += zip.end(0);
  }
  archive += zip.finish();
  const auto read = read_zip(archive);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->size(), 70000u);
}

// The file has holes, so only the parts that are read take memory.
TEST(ZipWriter, RecordsBeyond4GiB) {
  constexpr std::uint64_t kLarge = (std::uint64_t{5} << 30) + 3;
  const testing_support::TemporaryDirectory temporary;
  const std::string path = temporary / "large";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_GE(fd, 0);
  std::uint64_t size = 0;
  const auto put = [&](const std::string& text) {
    EXPECT_EQ(::pwrite(fd, text.data(), text.size(), static_cast<off_t>(size)),
              static_cast<ssize_t>(text.size()));
    size += text.size();
  };
  ZipWriter zip;
  put(zip.begin("a/large", kLarge));
  size += kLarge;
  put(zip.end(7));
  put(zip.begin("a/behind", 2));
  EXPECT_EQ(size % 64, 0u);
  put("12");
  put(zip.end(crc32("12")));
  put(zip.finish());
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  ASSERT_NE(memory, MAP_FAILED);
  const auto read = read_zip({static_cast<const char*>(memory), size});
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].bytes.size(), kLarge);
  EXPECT_EQ((*read)[0].crc, 7u);
  EXPECT_EQ((*read)[1].bytes, "12");
  EXPECT_TRUE(has_right_crc((*read)[1]));
  ::munmap(memory, size);
}

}  // namespace
}  // namespace ddprun
