// Ranks that measure on orders of benchmarks/collectives.py. A rank waits for an order, makes a
// call many times, reports how long it took, and waits again without using its core. Meanwhile
// ranks of other systems have their turn.
//
// An order is a line: the call, the number of timed calls, the number of untimed calls before
// them, then numbers of bytes, whose meaning depends on the call. The answer is also a line: the
// microseconds of all timed calls, and the microseconds of processor time that the process used
// meanwhile; or "none" if the system has no such call. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ddprun::benchmarks {

struct Order {
  std::string call;
  std::vector<std::size_t> bytes;
  std::size_t size(std::size_t i) const { return i < bytes.size() ? bytes[i] : 0; }
};

// MeasuredSystem: one rank of a system that can be measured. An error ends the program.
class MeasuredSystem {
 public:
  virtual ~MeasuredSystem() = default;
  // Returns the call that the order wants repeated; null: the system has no such call.
  virtual std::function<void()> prepare(const Order& order) = 0;
  virtual void barrier() = 0;
};

// DriverLink: the connection to the driver, a stream socket. Messages are lines.
class DriverLink {
 public:
  // Connects, and tells the driver which rank this is. path: of the driver's Unix socket.
  DriverLink(const std::string& path, int rank);
  ~DriverLink();
  DriverLink(const DriverLink&) = delete;
  DriverLink& operator=(const DriverLink&) = delete;

  // Waits for the next line. Returns it without its end; empty if the driver is gone.
  std::string read_line();
  // Returns whether there is a line, or the driver is gone.
  bool has_line();
  void write_line(const std::string& line);

 private:
  int socket_;
  std::string read_;
};

// Buffer: zeros in memory that is already paged in, aligned as LibTorch aligns tensors.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  char* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> memory_;
};

// Executes the driver's orders until the driver is gone.
void serve_rounds(const std::string& path, int rank, MeasuredSystem& system);

// Binds a rank to a core of its own, as a launcher does. If there are more ranks than cores,
// ranks share cores.
void bind_to_core(int rank);

}  // namespace ddprun::benchmarks
