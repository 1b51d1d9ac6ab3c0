#include "worker_lib/cpu_shm/core/chunk_pipeline.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/rng.h"

namespace ddprun {
namespace {

using Action = ChunkPipeline::Action;
using Work = ChunkPipeline::Work;

std::string story(ChunkPipeline pipeline) {
  std::string text;
  while (const auto step = pipeline.next()) {
    const char* name = step->action == Action::kStage  ? "S"
                       : step->action == Action::kWork ? "W"
                                                       : "C";
    text += name + std::to_string(step->chunk);
    if (step->wait) text += "(" + std::to_string(step->wait) + ")";
    if (step->publish) text += ">" + std::to_string(step->publish);
    text += " ";
  }
  return text;
}

TEST(ChunkPipeline, WithWorkLooksAtWhatOthersMadeAStepAgo) {
  EXPECT_EQ(story(ChunkPipeline(10, 3, Work::kSome)),
            "S0>10 S1>12 W0(10)>13 S2>14 C0(13) W1(12)>15 C1(15) W2(14)>17 C2(17) ");
}

TEST(ChunkPipeline, WithoutWorkCopiesOutRightAway) {
  EXPECT_EQ(story(ChunkPipeline(10, 3, Work::kNone)), "S0>10 S1>12 C0(10) S2>14 C1(12) C2(14) ");
}

TEST(ChunkPipeline, OneChunkTakesOneMeetingWithoutWorkAndTwoWithIt) {
  EXPECT_EQ(story(ChunkPipeline(10, 1, Work::kNone)), "S0>10 C0(10) ");
  EXPECT_EQ(story(ChunkPipeline(10, 1, Work::kSome)), "S0>10 W0(10)>13 C0(13) ");
}

TEST(ChunkPipeline, TicksGrowAndTheNextCollectiveComesAfterThem) {
  for (const Work work : {Work::kNone, Work::kSome}) {
    for (std::size_t chunks = 1; chunks < 9; ++chunks) {
      ChunkPipeline pipeline(5, chunks, work);
      std::uint64_t last = 0;
      while (const auto step = pipeline.next()) {
        if (!step->publish) continue;
        EXPECT_GT(step->publish, last);
        EXPECT_NE(step->publish, pipeline.header_tick());
        last = step->publish;
      }
      EXPECT_GT(pipeline.next_arrival(), last);
      EXPECT_GT(pipeline.next_arrival(), pipeline.header_tick());
    }
  }
}

// One rank of a simulated node that runs random collectives one after another.
struct Player {
  std::size_t call = 0;
  std::uint64_t tick = 0;
  std::uint64_t arrival = 1;
  std::size_t first_chunk = 0;
  std::optional<ChunkPipeline> pipeline;
  std::optional<ChunkPipeline::Step> step;
  bool waits_for_arrival = false;
};

struct Call {
  std::size_t chunks;
  Work work;
};

// The content of one stage: the number of the chunk, and how far it is.
struct StageContent {
  std::size_t chunk = ~std::size_t{0};
  bool worked_on = false;
};

class Node {
 public:
  Node(int ranks, int lanes, std::vector<Call> calls)
      : calls_(std::move(calls)), lanes_(lanes), players_(ranks), stages_(ranks) {}

  // Lets random ranks take one step each until all have finished. Returns false if no rank can
  // go on.
  bool play(Rng& rng) {
    for (std::size_t stuck = 0; !finished();) {
      const std::size_t rank = rng.below(players_.size());
      // Some ranks run ahead for a while, to reach the limits of what waiting allows.
      const std::size_t turns = rng.chance(0.2) ? 1 + rng.below(30) : 1;
      bool moved = false;
      for (std::size_t i = 0; i < turns; ++i) moved = advance(rank) || moved;
      stuck = moved ? 0 : stuck + 1;
      if (stuck > 1000 * players_.size()) return false;
    }
    return true;
  }

 private:
  bool finished() const {
    for (const Player& player : players_) {
      if (player.call < calls_.size()) return false;
    }
    return true;
  }

  bool everyone_reached(std::uint64_t tick) const {
    for (const Player& player : players_) {
      if (player.tick < tick) return false;
    }
    return true;
  }

  bool advance(std::size_t rank) {
    Player& player = players_[rank];
    if (player.call == calls_.size()) return false;
    const Call& call = calls_[player.call];
    if (!player.pipeline) {
      player.pipeline.emplace(player.arrival, call.chunks, call.work);
      player.step = player.pipeline->next();
    }
    if (player.waits_for_arrival) {
      if (!everyone_reached(player.arrival)) return false;
      player.waits_for_arrival = false;
      return true;
    }
    if (!player.step) {
      player.arrival = player.pipeline->next_arrival();
      player.first_chunk += call.chunks;
      player.pipeline.reset();
      ++player.call;
      return true;
    }
    const auto step = *player.step;
    const bool idle = step.action == Action::kWork && static_cast<int>(rank) >= lanes_;
    if (step.wait && !idle && !everyone_reached(step.wait)) return false;
    perform(rank, step, call, idle);
    if (step.publish) player.tick = step.publish;
    player.waits_for_arrival = step.action == Action::kStage && step.chunk == 0;
    player.step = player.pipeline->next();
    return true;
  }

  void perform(std::size_t rank, const ChunkPipeline::Step& step, const Call& call, bool idle) {
    const std::size_t chunk = players_[rank].first_chunk + step.chunk;
    const std::size_t slot = chunk % ChunkPipeline::kStages;
    switch (step.action) {
      case Action::kStage: stages_[rank][slot] = {chunk, false}; break;
      case Action::kWork:
        if (idle) break;
        for (const auto& of_rank : stages_)
          ASSERT_EQ(of_rank[slot].chunk, chunk) << "overwritten or not yet staged";
        stages_[rank][slot].worked_on = true;
        break;
      case Action::kCopyOut:
        for (std::size_t other = 0; other < stages_.size(); ++other) {
          ASSERT_EQ(stages_[other][slot].chunk, chunk) << "overwritten or not yet staged";
          const bool works = call.work == Work::kSome && static_cast<int>(other) < lanes_;
          ASSERT_EQ(stages_[other][slot].worked_on, works);
        }
        break;
    }
  }

  std::vector<Call> calls_;
  int lanes_;
  std::vector<Player> players_;
  std::vector<std::array<StageContent, ChunkPipeline::kStages>> stages_;
};

TEST(ChunkPipeline, NoInterleavingReadsAStageTooEarlyOrTooLateOrGetsStuck) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Rng rng(seed);
    const int ranks = 1 + static_cast<int>(rng.below(5));
    const int lanes = 1 + static_cast<int>(rng.below(ranks));
    std::vector<Call> calls;
    for (int i = 0; i < 12; ++i) {
      calls.push_back(
          {1 + rng.below(rng.chance(0.5) ? 3 : 14), rng.chance(0.5) ? Work::kSome : Work::kNone});
    }
    Node node(ranks, lanes, calls);
    ASSERT_TRUE(node.play(rng)) << "stuck; seed " << seed;
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ddprun
