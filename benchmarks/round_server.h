// For programs whose ranks measure when benchmarks/collectives.py tells them to: a rank waits for an
// order, makes a call many times, says how long it took, and waits again without using its core, while
// ranks of other systems have their turn.
//
// An order is a line: the call, how often, how often before that untimed, then bytes, of which the call
// says what they are. The answer is a line, too: microseconds of all timed calls, and of processor time
// that the process used meanwhile; or "none" where the system has no such call. One thread.
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

// A system that can be measured, as one of its ranks has it. What goes wrong ends the program.
class MeasuredSystem {
 public:
  virtual ~MeasuredSystem() = default;
  // What the order wants repeated; null: there is no such call.
  virtual std::function<void()> prepare(const Order& order) = 0;
  virtual void barrier() = 0;
};

// A line of a stream socket to the driver, without its end; empty when the driver has gone.
class DriverLink {
 public:
  // path: of the driver's Unix socket. Says which rank this is.
  DriverLink(const std::string& path, int rank);
  ~DriverLink();
  DriverLink(const DriverLink&) = delete;
  DriverLink& operator=(const DriverLink&) = delete;

  std::string read_line();
  bool has_line();  // or the driver has gone
  void write_line(const std::string& line);

 private:
  int socket_;
  std::string read_;
};

// Zeros that are really there, aligned as LibTorch aligns tensors.
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

// Carries out the driver's orders until it goes.
void serve_rounds(const std::string& path, int rank, MeasuredSystem& system);

// A rank on a core of its own, as a launcher binds it; with more ranks than cores they take turns.
void bind_to_core(int rank);

}  // namespace ddprun::benchmarks
