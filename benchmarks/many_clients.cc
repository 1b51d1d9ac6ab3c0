#include "benchmarks/many_clients.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/pipe.h"
#include "benchmarks/give_up.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/listen.h"

namespace ddprun::benchmarks {
namespace {

constexpr int kEvents = 512;

void watch(int epoll, int operation, int fd, std::uint32_t events, std::uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  must(::epoll_ctl(epoll, operation, fd, &event) == 0, "epoll_ctl");
}

// Makes a child process end with this program. A child calls it first.
void die_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
}

[[noreturn]] void serve_bare(int listener,
                             const std::function<BareAnswer(std::string_view)>& answer) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  must(epoll >= 0, "epoll_create1");
  watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, static_cast<std::uint64_t>(listener));
  std::vector<int> clients;
  std::vector<char> room(65536);
  const std::string words(65536, 'x');
  std::array<epoll_event, kEvents> events;
  const auto say = [&](int client, const BareAnswer& said) {
    const std::string_view text =
        said.text.empty() ? std::string_view(words).substr(0, said.bytes) : said.text;
    must(::send(client, text.data(), text.size(), MSG_NOSIGNAL) >= 0, "send");
  };
  for (;;) {
    const int count = ::epoll_wait(epoll, events.data(), kEvents, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(events[static_cast<std::size_t>(i)].data.u64);
      if (fd == listener) {
        for (int client; (client = ::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
          disable_nagle(client);
          watch(epoll, EPOLL_CTL_ADD, client, EPOLLIN, static_cast<std::uint64_t>(client));
          clients.push_back(client);
        }
        continue;
      }
      const ssize_t size = ::recv(fd, room.data(), room.size(), 0);
      if (size <= 0) {
        clients.erase(std::remove(clients.begin(), clients.end(), fd), clients.end());
        ::close(fd);
        continue;
      }
      const BareAnswer said = answer({room.data(), static_cast<std::size_t>(size)});
      if (said.bytes == 0 && said.text.empty()) continue;
      if (!said.to_all) {
        say(fd, said);
      } else {
        for (const int client : clients) say(client, said);
      }
    }
  }
}

}  // namespace

// --- ManyClients --------------------------------------------------------------------------------

ManyClients::ManyClients(std::uint16_t port, Receive receive)
    : port_(port),
      receive_(std::move(receive)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      room_(1 << 20) {
  must(epoll_.valid(), "epoll_create1");
}

std::size_t ManyClients::connect() {
  const std::size_t client = connections_.size();
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  must(socket.valid(), "socket");
  // One source address has enough ports for this many connections.
  constexpr std::size_t kPerAddress = 20000;
  sockaddr_in from{};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + static_cast<std::uint32_t>(client / kPerAddress));
  const int yes = 1;
  ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
  must(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0, "bind");
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port_);
  must(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0, "connect");
  disable_nagle(socket.get());
  watch(epoll_.get(), EPOLL_CTL_ADD, socket.get(), EPOLLIN, client);
  connections_.push_back({std::move(socket), {}});
  return client;
}

void ManyClients::send(std::size_t client, std::string_view bytes) {
  Connection& connection = connections_[client];
  const bool idle = connection.unsent.empty();
  connection.unsent += bytes;
  if (idle) flush(client);
}

void ManyClients::flush(std::size_t client) {
  Connection& connection = connections_[client];
  const ssize_t sent = ::send(connection.socket.get(), connection.unsent.data(),
                              connection.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  must(sent >= 0 || errno == EAGAIN, "send");
  const bool whole = sent == static_cast<ssize_t>(connection.unsent.size());
  connection.unsent.erase(0, static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
  if (whole) return;
  benchmarks::watch(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), EPOLLIN | EPOLLOUT,
                    client);
}

void ManyClients::serve(Duration wait) {
  std::array<epoll_event, kEvents> events;
  const int timeout_ms =
      static_cast<int>((wait + std::chrono::microseconds(999)) / std::chrono::milliseconds(1));
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEvents, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const auto& event = events[static_cast<std::size_t>(i)];
    const std::size_t client = event.data.u64;
    Connection& connection = connections_[client];
    if ((event.events & EPOLLOUT) != 0) {
      benchmarks::watch(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), EPOLLIN, client);
      flush(client);
    }
    if ((event.events & ~EPOLLOUT) == 0) continue;
    const ssize_t size = ::recv(connection.socket.get(), room_.data(), room_.size(), MSG_DONTWAIT);
    if (size == 0)
      give_up("the server has closed the connection of client " + std::to_string(client));
    if (size < 0 && errno == EAGAIN) continue;
    must(size > 0, "recv");
    bytes_received_ += static_cast<std::uint64_t>(size);
    receive_(client, {room_.data(), static_cast<std::size_t>(size)});
  }
}

// --- processes ----------------------------------------------------------------------------------

Process::~Process() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

double cpu_seconds_of(pid_t pid) {
  clockid_t clock{};
  timespec used{};
  errno = ::clock_getcpuclockid(pid, &clock);
  must(errno == 0 && ::clock_gettime(clock, &used) == 0, "the CPU clock of a process");
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

std::uint64_t Process::resident_bytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  std::uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

Server::Started Server::start(const std::vector<std::string>& command) {
  Pipe out = need(make_pipe());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  must(pid >= 0, "fork");
  if (pid == 0) {
    die_with_parent(parent);
    ::dup2(out.write.get(), STDOUT_FILENO);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    std::perror(argv[0]);
    ::_exit(1);
  }
  out.write.reset();
  std::string line;
  for (char letter; ::read(out.read.get(), &letter, 1) == 1 && letter != '\n';) line += letter;
  const std::size_t colon = line.rfind(':');
  if (line.find("listening on ") == std::string::npos) give_up(command[0] + " said: " + line);
  return {pid, static_cast<std::uint16_t>(std::atoi(line.c_str() + colon + 1))};
}

Server::Started BareServer::start(const std::function<BareAnswer(std::string_view)>& answer) {
  const Listener listener = need(listen_tcp(HostPort{"127.0.0.1", 0}));
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  must(pid >= 0, "fork");
  if (pid == 0) {
    die_with_parent(parent);
    // The server must not keep other descriptors of this program open.
    const auto own = static_cast<unsigned>(listener.socket.get());
    ::close_range(3, own - 1, 0);
    ::close_range(own + 1, ~0U, 0);
    serve_bare(listener.socket.get(), answer);
  }
  return {pid, listener.address.port};
}

}  // namespace ddprun::benchmarks
