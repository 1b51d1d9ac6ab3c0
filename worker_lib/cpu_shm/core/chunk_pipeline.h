// ChunkPipeline: the order in which a rank stages, works on and copies out the chunks of one
// collective.
//
// A pure value; one owner thread. The caller takes the next step, waits for the step's `wait`
// tick, carries out the step, and publishes its `publish` tick.
//
// Each rank of a node has one progress counter, its *tick*, that only grows. All ranks run the
// same steps, so a tick says exactly how far a rank is. "Every rank has staged chunk i" means
// "every rank's tick is at least T". Per chunk i:
//
//   stage(i)     write the bytes for other ranks into this rank's stage i mod kStages
//   work(i)      once all have staged i: lanes reduce their share and exchange with other nodes
//   copy_out(i)  once all have worked on i (without work: staged i): read the others' stages
//
// The order is stage(i), copy_out(i-2), work(i-1). A rank waits for steps that others made one
// step ago, so a small skew between ranks costs no waiting. Without work the order is stage(i),
// copy_out(i-1). In both cases kStages buffers are enough: when a rank may write a stage, all
// ranks have read its old contents. (The test checks it with random interleavings, also across
// collectives.)
//
// Ticks of a collective whose ranks arrive at tick `arrival`: stage(0) is the arrival itself.
// arrival + 1 is left to the exchange of call headers between nodes. stage(i) = arrival + 2i for
// i > 0. work(i) = arrival + 2i + 3. The next collective arrives at next_arrival().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ddprun {

class ChunkPipeline {
 public:
  static constexpr std::size_t kStages = 4;

  enum class Work { kNone, kSome };
  enum class Action : std::uint8_t { kStage, kWork, kCopyOut };
  struct Step {
    Action action;
    std::size_t chunk;
    std::uint64_t wait = 0;     // 0: no need to wait
    std::uint64_t publish = 0;  // 0: nothing to publish
    friend bool operator==(const Step&, const Step&) = default;
  };

  ChunkPipeline(std::uint64_t arrival, std::size_t chunks, Work work)
      : arrival_(arrival), chunks_(chunks), work_(work) {}

  // Returns the next step; nullopt after the last copy_out. The first step is stage(0).
  std::optional<Step> next();

  std::uint64_t header_tick() const { return arrival_ + 1; }
  std::uint64_t next_arrival() const { return arrival_ + 2 * chunks_ + 2; }

 private:
  std::uint64_t staged(std::size_t chunk) const { return arrival_ + 2 * chunk; }
  std::uint64_t worked(std::size_t chunk) const { return arrival_ + 2 * chunk + 3; }

  std::uint64_t arrival_;
  std::size_t chunks_;
  Work work_;
  std::size_t turn_ = 0;
  int part_ = 0;
};

}  // namespace ddprun
