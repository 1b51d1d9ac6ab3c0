// MessageWriter and MessageReader: the two ends of a stream of messages from one rank to
// another. The stream is a ring in the node's segment, or a connection that the sender makes.
// Bytes keep their order and go one way; the stream holds a limited number of them. Nothing here
// waits.
//
// A rank sets its SleepState before it sleeps. A rank that has moved a ring then notifies the
// sleeper's wakeup fd. All of it is sequentially consistent: a sleeper sets the state and then
// looks at its rings once more. The other rank moves the ring and then looks at the state. So
// one of the two sees the other.
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
  // Writes a part of `first`, then of `second`. Returns the number of bytes written; 0: nothing
  // can be written now; negative: the other side has closed.
  virtual std::ptrdiff_t write_some(std::span<const char> first, std::span<const char> second) = 0;
  // Returns whether a rank that waits for room should try again instead of sleeping. (Default: the
  // kernel reports it.)
  virtual bool has_room() const { return false; }
  // Returns the descriptor to poll for room; -1: a wakeup fd is notified instead.
  virtual int fd() const { return -1; }
};

class MessageReader {
 public:
  virtual ~MessageReader() = default;
  // Returns the number of bytes read; 0: none are there now; negative: the other side has
  // closed, and everything has been read.
  virtual std::ptrdiff_t read_some(std::span<char> to) = 0;
  virtual bool has_bytes() const = 0;
  virtual int fd() const { return -1; }
};

// --- on one node ---

// SleepState: lies in the segment, one per rank. The rank itself and those that exchange
// messages with it use it.
struct SleepState {
  static constexpr std::uint32_t kAwake = 0, kAsleep = 1,
                                 kWaitsForRoom = 2;  // the last only together with kAsleep
  std::atomic<std::uint32_t> state;
};

// RingNeighbour: how to wake the rank at the other end of a ring.
struct RingNeighbour {
  SleepState& sleep_state;
  const WakeupFds& wakeups;
  int local = -1;
};

std::size_t ring_header_bytes();
// memory: the ring's, `bytes` long with its header, zero at first.
std::unique_ptr<MessageWriter> write_ring(char* memory, std::size_t bytes, RingNeighbour reader);
std::unique_ptr<MessageReader> read_ring(char* memory, std::size_t bytes, RingNeighbour writer);

// --- between nodes ---

// Makes a writer to a socket, which may still be connecting; `hello` is sent first.
std::unique_ptr<MessageWriter> write_socket(UniqueFd socket, std::string hello);
std::unique_ptr<MessageReader> read_socket(UniqueFd socket);

}  // namespace ddprun
