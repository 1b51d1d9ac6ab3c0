#include "worker_lib/serialization/core/state_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker_lib/serialization/core/small_zip.h"

namespace ddprun {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

// A pickle of a tensor with two floats in the storage "0".
const std::string kPickle =
    "\x80\x02"
    "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
    "X\x01\0\0\0000X\x03\0\0\0cpuK\x02tQK\0K\x02\x85K\x01\x85\x89"
    "ccollections\nOrderedDict\n)RtR."s;

SmallZip small_file() {
  return {{{"archive/data.pkl", kPickle},
           {"archive/byteorder", "little"},
           {"archive/data/0", "12345678"}}};
}

void expect_refused(const std::string& file, ErrorKind kind, const std::string& words) {
  const auto archive = read_state_archive(file, RecordCrcs::kCheck);
  ASSERT_FALSE(archive) << "expected: " << words;
  EXPECT_EQ(archive.error().kind, kind) << archive.error().message();
  EXPECT_THAT(archive.error().message(), HasSubstr(words));
}

TEST(StateArchive, WhatIsNoStateOfATrainingIsRefusedByName) {
  expect_refused(
      "\x80\x02\x8a\nl\xfc\x9c"
      "F\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
      ErrorKind::kUnsupported, "the format that PyTorch wrote before 1.6");
  SmallZip big = small_file();
  big.records[1].second = "big";
  expect_refused(big.archive(), ErrorKind::kUnsupported, "its tensors are big-endian");
  expect_refused(SmallZip{}.archive(), ErrorKind::kCorrupt, "without records");
  expect_refused(SmallZip{{{"other/x", "1"}}}.archive(), ErrorKind::kCorrupt,
                 "it has no record 'other/data.pkl'");
}

TEST(StateArchive, EveryStorageIsThereWithAsManyBytesAsThePickleSays) {
  SmallZip missing = small_file();
  missing.records.pop_back();
  expect_refused(missing.archive(), ErrorKind::kCorrupt, "it has no record 'archive/data/0'");
  SmallZip short_one = small_file();
  short_one.records[2].second = "1234567";
  expect_refused(short_one.archive(), ErrorKind::kCorrupt,
                 "record 'archive/data/0' has 7 bytes, the pickle says 8");
}

TEST(StateArchive, RecordsMayBeInAnotherOrderThanTheTensors) {
  const std::string tensor = kPickle.substr(2, kPickle.size() - 3);  // without its frame
  const std::size_t key_at = tensor.find("0X\x03\0\0\0cpu"s);
  ASSERT_NE(key_at, std::string::npos);
  const std::string keys = "0120331";
  std::string pickle = "\x80\x02]"s;
  for (const char key : keys) pickle += std::string(tensor).replace(key_at, 1, 1, key) + "a";
  const std::string file = SmallZip{
      {{"archive/data/3", "33333333"},
       {"archive/data/1", "11111111"},
       {"archive/data/0", "00000000"},
       {"archive/data/2", "22222222"},
       {"archive/data.pkl",
        pickle + "."}}}.archive();
  const auto archive = read_state_archive(file, RecordCrcs::kCheck);
  ASSERT_TRUE(archive) << archive.error().message();
  ASSERT_EQ(archive->tree.tensors.size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    EXPECT_EQ(archive->tree.tensors[i].storage.contents, std::string(8, keys[i])) << i;
}

TEST(StateArchive, AlteredBytesAreFoundByTheirCrc) {
  std::string file = small_file().archive();
  file.replace(file.find("12345678"), 1, "2");
  expect_refused(file, ErrorKind::kCorrupt,
                 "the bytes of record 'archive/data/0' do not match its CRC");
  EXPECT_TRUE(read_state_archive(file, RecordCrcs::kTrust));
}

TEST(StateArchive, GivesTheTreeAndTheBytesOfItsStorages) {
  SmallZip without_order = small_file();  // older files have no byte order
  without_order.records.erase(without_order.records.begin() + 1);
  for (const SmallZip& zip : {small_file(), without_order}) {
    const std::string file = zip.archive();
    const auto archive = read_state_archive(file, RecordCrcs::kCheck);
    ASSERT_TRUE(archive) << archive.error().message();
    EXPECT_EQ(archive->prefix, "archive/");
    EXPECT_EQ(archive->tree[archive->tree.top].kind, PickleKind::kTensor);
    EXPECT_EQ(archive->tree.tensors[0].storage.contents, "12345678");
    EXPECT_EQ(archive->records[archive->tree.tensors[0].storage.record].name, "archive/data/0");
  }
}

}  // namespace
}  // namespace ddprun
