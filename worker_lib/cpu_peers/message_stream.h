// What messages from one rank to another travel in: a ring in the node's segment, or a connection
// that the sender makes. Bytes in order, one way; a bounded amount is under way. Nothing here
// waits.
//
// A rank that sleeps says so in its sleep_state first; whoever moves a ring then rings its wakeup. All of it
// is sequentially consistent: a sleeper says that it sleeps and then looks at its rings once more,
// the other moves the ring and then looks at the sleep_state, so one of the two sees the other.
//
// Owner: the mailbox, which calls from one thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/unique_fd.h"
#include "worker_lib/cpu_shm/wakeup_fds.h"

namespace ddprun {

class MessageWriter {
 public:
  virtual ~MessageWriter() = default;
  // Takes some of the two, one behind the other, and says how much: 0: nothing now; negative: the
  // other side has closed.
  virtual std::ptrdiff_t write_some(std::span<const char> first, std::span<const char> second) = 0;
  // Whether a rank that waits for room should try again instead of sleeping.
  virtual bool has_room() const = 0;
  // To be watched for room; -1: a wakeup is rung.
  virtual int fd() const = 0;
};

class MessageReader {
 public:
  virtual ~MessageReader() = default;
  // Bytes read; 0: none now; negative: the other side has closed, and everything has been read.
  virtual std::ptrdiff_t read_some(std::span<char> to) = 0;
  virtual bool has_bytes() const = 0;
  virtual int fd() const = 0;
};

// --- on one node ---

// In the segment, one for each rank; the rank itself and those that exchange messages with it use
// it.
struct SleepState {
  static constexpr std::uint32_t kAwake = 0, kAsleep = 1,
                                 kWaitsForRoom = 2;  // the last with asleep
  std::atomic<std::uint32_t> state;
};

// How a ring's other end is woken.
struct RingNeighbour {
  SleepState& sleep_state;
  const WakeupFds& wakeups;
  int local = -1;
};

std::size_t ring_header_bytes();
// memory: of the ring, `bytes` with its header; zeros at first.
std::unique_ptr<MessageWriter> write_ring(char* memory, std::size_t bytes, RingNeighbour reader);
std::unique_ptr<MessageReader> read_ring(char* memory, std::size_t bytes, RingNeighbour writer);

// --- between nodes ---

// The socket may still be connecting; `hello` is said first.
std::unique_ptr<MessageWriter> write_socket(UniqueFd socket, std::string hello);
std::unique_ptr<MessageReader> read_socket(UniqueFd socket);

}  // namespace ddprun
