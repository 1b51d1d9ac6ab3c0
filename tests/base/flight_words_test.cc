#include "base/flight_words.h"

#include <gtest/gtest.h>

#include <memory>

namespace ddprun {
namespace {

TEST(FlightWords, NamesAreReadAsTheyAreWritten) {
  for (int number = 0; number < 256; ++number) {
    EXPECT_EQ(call_named(name_of(static_cast<FlightCall>(number))),
              static_cast<FlightCall>(number));
    EXPECT_EQ(type_named(name_of(static_cast<FlightType>(number))),
              static_cast<FlightType>(number));
    EXPECT_EQ(op_named(name_of(static_cast<FlightOp>(number))), static_cast<FlightOp>(number));
  }
  EXPECT_EQ(name_of(FlightCall::kAllReduceCoalesced), "all_reduce_coalesced");
  EXPECT_EQ(name_of(static_cast<FlightCall>(77)), "call 77") << "of a newer worker library";
  EXPECT_EQ(name_of(FlightType::kNone), "");
  for (const char* name : {"", "call", "call ", "call x", "call 256", "call -1", "nonsense"}) {
    EXPECT_EQ(call_named(name), FlightCall::kNone) << name;
  }
}

TEST(FlightWords, SpansOfTimeAreWithinBounds) {
  EXPECT_EQ(span_text(1'000'000'000, 3'000'000'000), "2.0 s");
  EXPECT_EQ(span_text(3, 1), span_text(0, 0)) << "it began later than now";
  EXPECT_NE(span_text(0, UINT64_MAX), "");
}

TEST(FlightWords, ACallInWordsSaysWhatIsKnownOfIt) {
  FlightEntry call{.bytes = 8, .call = FlightCall::kAllReduce};
  EXPECT_EQ(words_of(call), "all_reduce of 8 bytes");
  call.dtype = FlightType::kInt64;
  EXPECT_EQ(words_of(call), "all_reduce of 8 bytes of int64");
  call.op = FlightOp::kSum;
  EXPECT_EQ(words_of(call), "all_reduce of 8 bytes (sum of int64)");
  EXPECT_EQ(words_of({.bytes = 8, .peer = 2, .call = FlightCall::kGather}),
            "gather of 8 bytes to rank 2");
  EXPECT_EQ(words_of({.bytes = 8, .peer = 2, .call = FlightCall::kBroadcast}),
            "broadcast of 8 bytes from rank 2");
  EXPECT_EQ(words_of({.bytes = 8, .peer = 2, .call = FlightCall::kSend, .tag = 3}),
            "send of 8 bytes to rank 2, tag 3");
  EXPECT_EQ(words_of({.bytes = 8, .call = FlightCall::kMonitoredBarrier}), "monitored_barrier");
}

constexpr std::uint64_t kSecond = 1'000'000'000;

void note(WorkerPage& page, std::uint64_t number, const FlightEntry& entry) {
  FlightRecord& record = page.record_of(number);
  record.begun_ns = entry.begun_ns;
  record.ended_ns = entry.ended_ns;
  record.bytes = entry.bytes;
  record.group = entry.group;
  record.peer = entry.peer;
  record.call = entry.call;
  record.dtype = entry.dtype;
  record.number = number;
  page.calls = number;
}

TEST(FlightWords, WhereARankIsIsWhatItsPageSays) {
  const auto page = std::make_unique<WorkerPage>();
  EXPECT_EQ(whereabouts(*page, 5 * kSecond), "it has made no call");
  note(*page, 1, {.begun_ns = kSecond, .ended_ns = 2 * kSecond, .call = FlightCall::kBarrier});
  EXPECT_EQ(whereabouts(*page, 5 * kSecond),
            "it has been in no call for 3.0 s; the last was barrier");
  note(*page, 2,
       {.begun_ns = 3 * kSecond,
        .bytes = 4,
        .group = 9,
        .peer = 2,
        .call = FlightCall::kRecv,
        .dtype = FlightType::kFloat32});
  EXPECT_EQ(whereabouts(*page, 5 * kSecond),
            "it has been in recv of 4 bytes of float32 from rank 2 for 2.0 s");
  page->groups[0].id = 9;
  page->groups[0].name = {'t', 'p', '\n'};
  page->group_count = 1;
  page->step = 7;
  page->reports = 1;
  EXPECT_EQ(
      whereabouts(*page, 5 * kSecond),
      "it has done step 7; it has been in recv of 4 bytes of float32 from rank 2 in group tp? for "
      "2.0 s");
}

// The page is memory of another process, which may write anything there.
TEST(FlightWords, APageOfNonsenseIsReadWithinBounds) {
  const auto page = std::make_unique<WorkerPage>();
  page->calls = ~std::uint64_t{0};
  page->group_count = ~std::uint32_t{0};
  for (FlightRecord& record : page->records) record.number = ~std::uint64_t{0};
  EXPECT_FALSE(whereabouts(*page, 0).empty());
}

}  // namespace
}  // namespace ddprun
