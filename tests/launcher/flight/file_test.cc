#include "launcher/flight/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "launcher/flight/json.h"
#include "tests/launcher/flight/core/frame.h"
#include "tests/support/eventually.h"
#include "tests/support/read_file.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_directory.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

TEST(FlightFileTest, WritesAWholeFileAndLeavesNoDraft) {
  const TemporaryDirectory directory;
  FlightFile file;
  EXPECT_TRUE(file.finish()) << "nothing was begun";
  ASSERT_TRUE(file.save(directory / "", {flight_of(3)}));
  ASSERT_TRUE(file.finish());
  const auto read = parse_flight_file(read_file(directory / "flight.json"));
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, std::vector{flight_of(3)});
  EXPECT_FALSE(std::filesystem::exists(directory / "flight.json.new"));
}

TEST(FlightFileTest, WhatCannotBeWrittenIsSaidAtTheEnd) {
  FlightFile file;
  ASSERT_TRUE(file.save("/nowhere", {flight_of(0)}));
  const auto written = file.finish();
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message(), HasSubstr("/nowhere/flight.json"));
  EXPECT_TRUE(file.finish()) << "once";
}

TEST(FlightFileTest, AFullDiskCostsTheFileAndKeepsNoPartOfIt) {
  const TemporaryDirectory directory;
  const SmallDisk disk(directory / "disk", "size=64k");
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a small disk: " << std::strerror(errno);
  RankFlight flight = flight_of(0);
  for (std::uint64_t i = 0; i < 1000; ++i) add_call(flight, i);
  FlightFile file;
  ASSERT_TRUE(file.save(directory / "disk", {flight}));
  const auto written = file.finish();
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message(), HasSubstr("No space left on device"));
  EXPECT_THAT(listing(directory / "disk"), testing::IsEmpty());
}

// A FIFO whose other end is never opened acts like a disk that hangs.
TEST(FlightFileTest, NobodyWaitsForADiskThatHangs) {
  const TemporaryDirectory directory;
  ASSERT_EQ(mkfifo((directory / "flight.json.new").c_str(), 0600), 0);
  FlightFile file;
  ASSERT_TRUE(file.save(directory / "", {flight_of(0)}));
  const auto next = file.save(directory / "", {flight_of(1)});
  ASSERT_FALSE(next) << "one at a time";
  EXPECT_THAT(next.error().message(), HasSubstr("the disk does not answer"));
  const TimePoint begun = BootClock::now();
  EXPECT_FALSE(file.finish());
  EXPECT_GE(BootClock::now() - begun, FlightFile::kPatience);
  // The write continues when the disk does.
  EXPECT_TRUE(eventually([&] {
    static_cast<void>(read_file(directory / "flight.json.new"));
    return bool(file.finish());
  }));
}

}  // namespace
}  // namespace ddprun::testing_support
