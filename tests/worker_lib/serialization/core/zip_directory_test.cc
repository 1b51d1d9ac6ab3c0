#include "worker_lib/serialization/core/zip_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "tests/worker_lib/serialization/core/names_of_one_hash.h"
#include "tests/worker_lib/serialization/core/small_zip.h"
#include "worker_lib/serialization/core/zip_writer.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

void expect_refused(const std::string& archive, ErrorKind kind, const std::string& words) {
  const auto records = read_zip(archive);
  ASSERT_FALSE(records) << "expected: " << words;
  EXPECT_EQ(records.error().kind, kind) << records.error().message();
  EXPECT_THAT(records.error().message(), HasSubstr(words));
}

// Returns the archive with `after` written over the last occurrence of `before`.
std::string altered(std::string archive, const std::string& before, const std::string& after) {
  const std::size_t at = archive.rfind(before);
  EXPECT_NE(at, std::string::npos);
  return archive.replace(at, after.size(), after);
}

TEST(ZipDirectory, WhatIsNotStoredPlainlyIsRefusedByName) {
  expect_refused(SmallZip{{{"a/x", "12"}}, 8}.archive(), ErrorKind::kUnsupported,
                 "record 'a/x' is compressed");
  expect_refused(SmallZip{{{"a/x", "12"}}, 0, 1}.archive(), ErrorKind::kUnsupported,
                 "record 'a/x' is encrypted");
}

TEST(ZipDirectory, EveryPrefixIsRefused) {
  const std::string whole = SmallZip{{{"a/x", "12"}, {"a/y", ""}}}.archive();
  ASSERT_TRUE(read_zip(whole));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_FALSE(read_zip(std::string_view(whole).substr(0, bytes))) << bytes;
}

TEST(ZipDirectory, NoRecordReachesBeyondTheFileOrOverAnother) {
  const std::string whole = SmallZip{{{"a/x", "1234"}, {"a/y", "5678"}}}.archive();
  const auto sizes = [](std::uint64_t bytes) {
    return SmallZip::number(bytes, 4) + SmallZip::number(bytes, 4);
  };
  expect_refused(altered(whole, sizes(4), sizes(4000)), ErrorKind::kCorrupt,
                 "record 'a/y' reaches beyond the end");
  // In the directory, the first record gets a size that makes it cover the second record.
  std::string covering = whole;
  covering.replace(covering.find(sizes(4), covering.find("PK\1\2")), 8, sizes(45));
  expect_refused(covering, ErrorKind::kCorrupt, "two of its records overlap");
  expect_refused(altered(whole, sizes(4), sizes(0xffffffff)), ErrorKind::kCorrupt,
                 "record 'a/y' has no zip64 sizes");
  expect_refused(SmallZip{{{"a/x", "1"}, {"a/x", "2"}}}.archive(), ErrorKind::kCorrupt,
                 "two records 'a/x'");
  expect_refused(SmallZip{{{"a\n", "1"}}}.archive(), ErrorKind::kCorrupt, "name is not text");
  expect_refused(altered(whole, "a/y", "a/z"), ErrorKind::kCorrupt,
                 "'a/z' has another name at its position");
}

TEST(ZipDirectory, RecordsComeInTheirOrderWithTheirBytes) {
  const std::string archive = SmallZip{{{"a/y", "12"}, {"a/x", ""}, {"b", "345"}}}.archive();
  const auto records = read_zip(archive);
  ASSERT_TRUE(records) << records.error().message();
  ASSERT_EQ(records->size(), 3u);
  EXPECT_EQ((*records)[0].name, "a/y");
  EXPECT_EQ((*records)[0].bytes, "12");
  EXPECT_EQ((*records)[1].bytes, "");
  EXPECT_EQ((*records)[2].bytes, "345");
  for (ZipRecord record : *records) {
    EXPECT_TRUE(has_right_crc(record));
    record.crc ^= 1;
    EXPECT_FALSE(has_right_crc(record));
  }
}

TEST(RecordIndex, FindsEachNameAndNoOther) {
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back("a/" + std::to_string(i));
  std::vector<ZipRecord> records;
  for (const std::string& name : names) records.push_back({.name = name, .bytes = {}});
  RecordIndex index(records.size());
  for (const ZipRecord& record : records) EXPECT_TRUE(index.add(record));
  for (const ZipRecord& record : records) {
    EXPECT_EQ(index.find(record.name), &record);
    EXPECT_FALSE(index.add({.name = record.name, .bytes = "another"}));
  }
  EXPECT_EQ(index.find("a/1000"), nullptr);
  EXPECT_EQ(index.find(""), nullptr);
  EXPECT_EQ(RecordIndex(0).find("a/1"), nullptr);
}

// A search over all of them took 46 s.
TEST(ZipDirectory, NamesOfOneHashAreReadAsFastAsOthers) {
  const std::vector<std::string> names = names_of_one_hash(100'000);
  ASSERT_EQ(std::hash<std::string>()(names.front()), std::hash<std::string>()(names.back()));
  std::string archive;
  ZipWriter zip([&](const void* data, std::size_t bytes) {
    archive.append(static_cast<const char*>(data), bytes);
  });
  for (const std::string& name : names) zip.add(name, "");
  zip.finish();
  const std::clock_t begun = std::clock();  // of the processors
  const auto records = read_zip(archive);
  ASSERT_TRUE(records) << records.error().message();
  RecordIndex index(records->size());
  for (const ZipRecord& record : *records) ASSERT_TRUE(index.add(record));
  for (std::size_t i = 0; i < names.size(); ++i) ASSERT_EQ(index.find(names[i]), &(*records)[i]);
  EXPECT_EQ(index.find(names[0] + names[1]), nullptr);
  EXPECT_FALSE(index.add(records->back()));
  EXPECT_LT(std::clock() - begun, 30 * CLOCKS_PER_SEC);
}

// The archive has the form of one larger than 4 GiB: its sizes and offsets do not use the
// 32-bit fields.
TEST(ZipDirectory, SizesAndPlacesOf64Bits) {
  const auto number = SmallZip::number;
  const std::string plain = SmallZip{{{"a/x", "1234"}}}.archive();
  const std::size_t directory_at = plain.find("PK\1\2"), end_at = plain.find("PK\5\6");
  std::string entry = plain.substr(directory_at, end_at - directory_at);
  entry.replace(20, 8, std::string(8, '\xff'));  // both sizes
  entry.replace(30, 2, number(28, 2));           // length of the extra field
  entry.replace(42, 4, std::string(4, '\xff'));  // offset of the record
  entry += number(1, 2) + number(24, 2) + number(4, 8) + number(4, 8) + number(0, 8);
  const std::size_t end64_at = directory_at + entry.size();
  const auto archive = [&](std::size_t at) {
    return plain.substr(0, directory_at) + entry + "PK\6\6" + number(44, 8) + number(0, 12) +
           number(1, 8) + number(1, 8) + number(entry.size(), 8) + number(directory_at, 8) +
           "PK\6\7" + number(0, 4) + number(at, 8) + number(1, 4) + "PK\5\6" + number(0, 4) +
           std::string(12, '\xff') + number(0, 2);
  };
  const std::string whole = archive(end64_at);
  const auto records = read_zip(whole);
  ASSERT_TRUE(records) << records.error().message();
  ASSERT_EQ(records->size(), 1u);
  EXPECT_EQ(records->front().bytes, "1234");
  expect_refused(archive(SIZE_MAX), ErrorKind::kCorrupt, "its zip64 end record is missing");
}

}  // namespace
}  // namespace ddprun
