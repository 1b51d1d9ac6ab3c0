// For benchmarks of a server with many connections: all connections in one process and one
// thread, the process of the server, and a bare server that shows how much the kernel takes for
// as many bytes. An error ends the program with one line (give_up.h).
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

// ManyClients: connections to one port of this host, numbered from 0.
class ManyClients {
 public:
  // Called by serve() with a client's number and the bytes that it has received.
  using Receive = std::function<void(std::size_t client, std::string_view bytes)>;

  ManyClients(std::uint16_t port, Receive receive);

  // Makes one more connection. Returns its number.
  std::size_t connect();
  // Sends. If the socket does not take all bytes now, serve() sends the rest.
  void send(std::size_t client, std::string_view bytes);
  // Delivers received bytes. Waits for them for at most `wait`.
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

// Returns the processor time of all threads of a process, in user and in kernel mode.
double cpu_seconds_of(pid_t pid);

// Process: a child process of this program. The destructor kills it.
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

// Server: a program whose first line is "...: listening on HOST:PORT".
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

// BareAnswer: the answer of a bare server to a piece of input: `text`, or else `bytes` bytes. It
// goes to the sender of the input or to all clients.
struct BareAnswer {
  std::size_t bytes = 0;
  bool to_all = false;
  std::string_view text = {};  // valid until the next call
};

// BareServer: only an epoll loop, recv() and send(), in a process of its own.
struct BareServer : Server {
  explicit BareServer(const std::function<BareAnswer(std::string_view)>& answer)
      : Server(start(answer)) {}

 private:
  static Started start(const std::function<BareAnswer(std::string_view)>& answer);
};

}  // namespace ddprun::benchmarks
