#include "rendezvous/persistence/core/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Written: a journal of a few writes, and the image that was acknowledged after each.
struct Written {
  std::string bytes = journal_snapshot({});
  std::vector<std::size_t> ends{bytes.size()};
  std::vector<JournalImage> images{{}};

  void write(const std::vector<JournalEntry>& entries) {
    bytes += journal_frame(entries);
    ends.push_back(bytes.size());
    images.push_back(images.back());
    apply_entries(entries, images.back());
  }
  // Returns how many writes are complete before this offset.
  std::size_t whole_writes(std::size_t offset) const {
    std::size_t count = 0;
    while (count + 1 < ends.size() && ends[count + 1] <= offset) ++count;
    return count;
  }
};

Written some_writes() {
  Written written;
  written.write({{"job/a", "generation 0"}});
  written.write({{"job/b", std::string(300, 'x')}, {"job/a", "generation 1"}});
  written.write({{"job/a", ""}});
  written.write({{"job/c", "\xc3\xa9"}, {"service", "{}"}});
  return written;
}

TEST(Journal, SaysWhatWasWritten) {
  const Written written = some_writes();
  const auto reading = read_journal(written.bytes);
  ASSERT_TRUE(reading) << reading.error().message();
  EXPECT_EQ(reading->whole_bytes, written.bytes.size());
  EXPECT_EQ(reading->image, written.images.back());
  EXPECT_FALSE(reading->image.contains("job/a"));
}

TEST(Journal, ASnapshotSaysTheSame) {
  JournalImage image = some_writes().images.back();
  for (int i = 0; i < 5; ++i) image["large" + std::to_string(i)] = std::string(700'000, 'y');
  const auto reading = read_journal(journal_snapshot(image));
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->image, image);
}

// The process was killed, or the power failed, at any moment of a write.
TEST(Journal, ATornTailIsCutAtEveryPosition) {
  const Written written = some_writes();
  for (std::size_t cut = written.ends[0]; cut <= written.bytes.size(); ++cut) {
    for (const std::string& garbage : {std::string(), std::string(40, '\0'), std::string("\xff")}) {
      const std::string bytes = written.bytes.substr(0, cut) + garbage;
      const auto reading = read_journal(bytes);
      ASSERT_TRUE(reading) << cut << ": " << reading.error().message();
      // The garbage may by chance equal the bytes that should follow.
      const auto same =
          std::mismatch(bytes.begin(), bytes.end(), written.bytes.begin(), written.bytes.end());
      const std::size_t whole =
          written.whole_writes(static_cast<std::size_t>(same.first - bytes.begin()));
      EXPECT_EQ(reading->whole_bytes, written.ends[whole]) << cut;
      EXPECT_EQ(reading->image, written.images[whole]) << cut;
    }
  }
}

TEST(Journal, ACutHeaderIsRefused) {
  const Written written = some_writes();
  for (std::size_t cut = 0; cut < written.ends[0]; ++cut) {
    EXPECT_FALSE(read_journal(written.bytes.substr(0, cut))) << cut;
  }
}

// For every changed byte: the result is never a state that was not acknowledged.
TEST(Journal, AFlippedByteIsRefusedOrCutNeverBelieved) {
  const Written written = some_writes();
  for (std::size_t at = 0; at < written.bytes.size(); ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string bytes = written.bytes;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      const auto reading = read_journal(bytes);
      const std::size_t before = written.whole_writes(at);
      const bool in_last = before + 2 == written.ends.size();
      ASSERT_EQ(reading.has_value(), in_last) << "byte " << at << " ^ " << flip;
      if (!reading) continue;
      EXPECT_EQ(reading->whole_bytes, written.ends[before]);
      EXPECT_EQ(reading->image, written.images[before]);
    }
  }
}

TEST(Journal, ADamagedMiddleIsRefusedWithItsOffset) {
  const Written written = some_writes();
  std::string bytes = written.bytes;
  bytes[written.ends[1] + 20] ^= 1;
  const auto reading = read_journal(bytes);
  ASSERT_FALSE(reading);
  EXPECT_EQ(reading.error().kind, ErrorKind::kCorrupt);
  for (const std::size_t offset : {written.ends[1], written.ends[2]}) {
    EXPECT_THAT(reading.error().cause, HasSubstr(std::to_string(offset)));
  }
}

TEST(Journal, AnotherVersionIsRefusedAsSuch) {
  const auto reading = read_journal("ddprun journal 2\nwhatever");
  ASSERT_FALSE(reading);
  EXPECT_EQ(reading.error().kind, ErrorKind::kUnsupported);
}

// The reader must not reserve memory for a frame length beyond the bytes that are there.
TEST(Journal, AHugeLengthTakesNoMemory) {
  std::string bytes = journal_snapshot({});
  bytes += std::string(
               "\xff"
               "DJF") +
           std::string("\xff\xff\xff\x03", 4) + "crc!";
  const auto reading = read_journal(bytes);
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->whole_bytes, journal_snapshot({}).size());
}

TEST(Journal, RandomWritesCutAnywhereGiveWhatWasAcknowledged) {
  Rng rng(7);
  for (int round = 0; round < 50; ++round) {
    Written written;
    for (std::uint64_t write = rng.below(8); write > 0; --write) {
      std::vector<JournalEntry> entries;
      for (std::uint64_t count = 1 + rng.below(4); count > 0; --count) {
        entries.push_back({"k" + std::to_string(rng.below(4)), std::string(rng.below(40), 'v')});
      }
      written.write(entries);
    }
    for (std::size_t cut = written.ends[0]; cut <= written.bytes.size(); ++cut) {
      const auto reading = read_journal(std::string_view(written.bytes).substr(0, cut));
      ASSERT_TRUE(reading);
      ASSERT_EQ(reading->image, written.images[written.whole_writes(cut)]);
    }
  }
}

}  // namespace
}  // namespace ddprun
