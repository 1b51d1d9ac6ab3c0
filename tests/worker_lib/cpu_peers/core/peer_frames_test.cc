#include "worker_lib/cpu_peers/core/peer_frames.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun {
namespace {

const std::vector<RankProgress> kRanks{
    {.rank = 3, .stopped = true, .entered = 7, .tick = 1u << 20, .whereabouts = "in all_reduce"},
    {.rank = 4, .stopped = false, .entered = 8, .tick = 0, .whereabouts = ""}};
const std::vector<RankNote> kNotes{{0, std::string("a\0b", 3)}, {1, ""}};

TEST(PeerFrames, ProgressArrivesAsItWasSent) {
  EXPECT_EQ(decode_progress(encode_progress(kRanks)), kRanks);
  EXPECT_EQ(decode_progress(""), std::vector<RankProgress>());
}

TEST(PeerFrames, NotesArriveAsTheyWereSent) {
  EXPECT_EQ(decode_notes(encode_notes(kNotes), 2), kNotes);
  EXPECT_EQ(decode_notes("", 2), std::vector<RankNote>());
}

TEST(PeerFrames, ABodyThatWasCutIsInvalid) {
  const std::string progress = encode_progress({kRanks[0]});
  for (std::size_t bytes = 1; bytes < progress.size(); ++bytes) {
    EXPECT_EQ(decode_progress(progress.substr(0, bytes)), std::nullopt) << bytes;
  }
  const std::string notes = encode_notes({kNotes[0]});
  for (std::size_t bytes = 1; bytes < notes.size(); ++bytes) {
    EXPECT_EQ(decode_notes(notes.substr(0, bytes), 2), std::nullopt) << bytes;
  }
}

TEST(PeerFrames, ANoteOfARankOutsideTheWorldIsInvalid) {
  EXPECT_EQ(decode_notes(encode_notes({{2, "x"}}), 2), std::nullopt);
  EXPECT_EQ(decode_notes(encode_notes({{-1, "x"}}), 2), std::nullopt);
}

}  // namespace
}  // namespace ddprun
