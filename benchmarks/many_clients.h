// For programs that measure a server with many connections: all of them in one process and one thread,
// the server's process, and a bare server beside it that shows what the kernel takes for as many
// bytes. What goes wrong ends the program with one line (give_up.h).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace ddprun::benchmarks {

// Connections to one port of this host, numbered from 0.
class ManyClients {
 public:
  // Called with a client's number and bytes that have come for it, from within serve().
  using Receive = std::function<void(std::size_t client, std::string_view bytes)>;

  ManyClients(std::uint16_t port, Receive receive);

  // One more connection; its number.
  std::size_t connect();
  // Of what the socket does not take now, the rest leaves from within serve().
  void send(std::size_t client, std::string_view bytes);
  // Hands out what has come; waits for it so long at most.
  void serve(Duration wait);

  std::size_t size() const { return connections_.size(); }
  std::uint64_t bytes_received() const { return bytes_received_; }

 private:
  struct Connection {
    UniqueFd socket;
    std::string unsent;
  };
  void flush(std::size_t client);

  std::uint16_t port_;
  Receive receive_;
  UniqueFd epoll_;
  std::vector<Connection> connections_;
  std::vector<char> room_;
  std::uint64_t bytes_received_ = 0;
};

// Of all threads of a process, in user and in kernel mode.
double cpu_seconds_of(pid_t pid);

// A process of this program's; it is killed when this object goes away.
class Process {
 public:
  explicit Process(pid_t pid) : pid_(pid) {}
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  double cpu_seconds() const { return cpu_seconds_of(pid_); }
  pid_t pid() const { return pid_; }
  std::uint64_t resident_bytes() const;

 private:
  pid_t pid_;
};

// A program that says "...: listening on HOST:PORT" in its first line.
struct Server {
  explicit Server(const std::vector<std::string>& command) : Server(start(command)) {}

  std::uint16_t port;
  Process process;

 protected:
  struct Started {
    pid_t pid;
    std::uint16_t port;
  };
  explicit Server(Started started) : port(started.port), process(started.pid) {}

 private:
  static Started start(const std::vector<std::string>& command);
};

// What a bare server says to a piece of input, to its sender or to all clients: so many bytes, or
// these.
struct BareAnswer {
  std::size_t bytes = 0;
  bool to_all = false;
  std::string_view text = {};  // valid until the next call
};

// An epoll loop, recv() and send(), and nothing else, in a process of its own.
struct BareServer : Server {
  explicit BareServer(const std::function<BareAnswer(std::string_view)>& answer)
      : Server(start(answer)) {}

 private:
  static Started start(const std::function<BareAnswer(std::string_view)>& answer);
};

}  // namespace ddprun::benchmarks
