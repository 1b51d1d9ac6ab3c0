#include "worker_lib/checkpoint/file_outline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_directory.h"
#include "worker_lib/checkpoint/io.h"
#include "worker_lib/serialization/core/archive_writer.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::TemporaryDirectory;

// Returns a file of torch.save with one tensor of these bytes, under the name "a".
std::string archive_of(const std::string& bytes) {
  using enum PickleKind;
  PickleTree tree;
  const auto count = static_cast<std::int64_t>(bytes.size());
  tree.tensors.push_back(
      {.storage = {"0", count, bytes}, .dtype = {"uint8", 1}, .sizes = {count}, .strides = {1}});
  tree.nodes.push_back({.kind = kDict, .items = {1, 2}});
  tree.nodes.push_back({.kind = kString, .text = "a"});
  tree.nodes.push_back({.kind = kTensor});
  std::string file;
  const auto no_crcs = [](const PickleStorage&) { return std::nullopt; };
  EXPECT_TRUE(write_state_archive(tree, no_crcs, [&](const void* data, std::size_t size) {
    file.append(static_cast<const char*>(data), size);
  }));
  return file;
}

class FileOutlineTest : public testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const std::string path_ = directory_ / "file.pt";

  Result<FileOutline> outline_of(const std::string& bytes, std::uint64_t expected) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return FileOutline::read(path_, expected);
  }
};

TEST_F(FileOutlineTest, KnowsWhereStoragesAreWithoutReadingThem) {
  const std::string bytes(100'000, 'x');
  const std::string file = archive_of(bytes);
  const Result<FileOutline> outline = outline_of(file, file.size());
  ASSERT_TRUE(outline) << outline.error().message();
  const std::string_view storage = outline->archive().tree.tensors[0].storage.contents;
  EXPECT_EQ(storage.size(), bytes.size());
  EXPECT_EQ(outline->position_of(storage), file.find(bytes));
  for (const FileOutline::Part& part : outline->parts())
    EXPECT_EQ(part.bytes, file.substr(part.at, part.bytes.size()));
}

// A storage's place depends on its header's lengths, which nothing else repeats.
TEST_F(FileOutlineTest, KnowsAllBytesThatPlacesDependOn) {
  const std::string file = archive_of(std::string(100'000, 'x'));
  const Result<FileOutline> outline = outline_of(file, file.size());
  ASSERT_TRUE(outline) << outline.error().message();
  EXPECT_TRUE(outline->agrees_with(0, file));
  const std::size_t header = file.find("PK\3\4", file.find("archive/data.pkl") + 1);
  ASSERT_NE(header, std::string::npos);
  for (std::size_t at = header; at < header + 30; ++at) {
    std::string other = file;
    other[at] = static_cast<char>(other[at] ^ 4);
    EXPECT_FALSE(outline->agrees_with(0, other)) << at;
    EXPECT_FALSE(outline->agrees_with(at, other.substr(at, 1))) << at;
    EXPECT_TRUE(outline->agrees_with(at + 1, other.substr(at + 1))) << at;
  }
  EXPECT_FALSE(outline->has_read(file.find("xxx") + 100, file.find("xxx") + 10'000));
}

TEST_F(FileOutlineTest, AnotherSizeIsDamage) {
  const std::string file = archive_of("abc");
  for (const std::uint64_t expected : {file.size() - 1, file.size() + 1}) {
    const Result<FileOutline> outline = outline_of(file, expected);
    ASSERT_FALSE(outline);
    EXPECT_EQ(outline.error().kind, ErrorKind::kCorrupt);
    EXPECT_THAT(outline.error().message(), HasSubstr(path_));
  }
}

// Returns the bytes that this process has read so far.
std::uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  for (std::string key; io >> key;)
    if (std::uint64_t value = 0; key == "rchar:" && io >> value) return value;
  return 0;
}

TEST_F(FileOutlineTest, OfLargeRecordsOnlyHeadersAreRead) {
  constexpr std::size_t kRecords = 100, kRecordBytes = 1 << 20;
  std::ofstream out(path_, std::ios::binary);
  ZipWriter zip([&](const void* data, std::size_t bytes) {
    out.seekp(static_cast<std::streamoff>(zip.at()));
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  });
  zip.add(std::string(kPickleRecord), "\x80\x02N.");
  for (std::size_t i = 0; i < kRecords; ++i) {
    zip.add_header(storage_record(i), kRecordBytes);
    zip.leave_out();
  }
  zip.finish();
  out.close();
  const std::uint64_t before = bytes_read();
  ASSERT_GT(before, 0u);
  const Result<FileOutline> outline = FileOutline::read(path_, zip.at());
  ASSERT_TRUE(outline) << outline.error().message();
  EXPECT_EQ(outline->archive().records.size(), kRecords + 1);
  EXPECT_LT(bytes_read() - before, 400'000u);
}

TEST_F(FileOutlineTest, APickleBeyondTheBoundIsPassedOverAndNotRead) {
  std::ofstream out(path_, std::ios::binary);
  ZipWriter zip([&](const void* data, std::size_t bytes) {
    out.seekp(static_cast<std::streamoff>(zip.at()));
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  });
  zip.add_header(std::string(kPickleRecord), std::uint64_t{1} << 31);
  zip.leave_out();
  zip.finish();
  out.close();
  const Result<FileOutline> outline = FileOutline::read(path_, zip.at());
  ASSERT_FALSE(outline);
  EXPECT_TRUE(is_beyond_reader(outline.error())) << outline.error().message();
  EXPECT_THAT(outline.error().message(), HasSubstr(path_));
}

// Every cut, and every byte set to ff. What is still read has the storage at its place, or has
// bytes that the comparison with the verified file finds.
TEST_F(FileOutlineTest, DamagedOutlinesAreRefusedOrHarmless) {
  const std::string file = archive_of("abc");
  for (std::size_t size = 0; size < file.size(); ++size)
    EXPECT_FALSE(outline_of(file.substr(0, size), size)) << size;
  for (std::size_t at = 0; at < file.size(); ++at) {
    std::string damaged = file;
    damaged[at] = '\xff';
    const Result<FileOutline> outline = outline_of(damaged, damaged.size());
    if (!outline || !outline->agrees_with(0, file)) continue;
    EXPECT_EQ(outline->position_of(outline->archive().tree.tensors[0].storage.contents),
              file.find("abc"))
        << at;
  }
}

}  // namespace
}  // namespace ddprun
