#include "benchmarks/round_server.h"

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/clock.h"
#include "base/usable_cpus.h"
#include "benchmarks/give_up.h"

namespace ddprun::benchmarks {
namespace {

double processor_us() {
  rusage used{};
  must(getrusage(RUSAGE_SELF, &used) == 0, "getrusage");
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

std::string answer(const std::string& line, MeasuredSystem& system) {
  std::istringstream words(line);
  Order order;
  std::int64_t count = 0, untimed = 0;
  words >> order.call >> count >> untimed;
  for (std::size_t bytes; words >> bytes;) order.bytes.push_back(bytes);
  const std::function<void()> call = system.prepare(order);
  if (!call) return "none";

  for (std::int64_t i = 0; i < untimed; ++i) call();
  system.barrier();
  const double used = processor_us();
  const TimePoint begin = BootClock::now();
  for (std::int64_t i = 0; i < count; ++i) call();
  system.barrier();  // a root may finish long before the others
  const Duration taken = BootClock::now() - begin;
  return std::to_string(std::chrono::duration<double, std::micro>(taken).count()) + " " +
         std::to_string(processor_us() - used);
}

}  // namespace

DriverLink::DriverLink(const std::string& path, int rank)
    : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) give_up("the driver's path is too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  must(socket_ >= 0, "socket");
  must(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
       "connect to the driver");
  write_line("rank " + std::to_string(rank));
}

DriverLink::~DriverLink() { ::close(socket_); }

std::string DriverLink::read_line() {
  for (;;) {
    const std::size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    char bytes[512];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    if (got <= 0) return "";
    read_.append(bytes, static_cast<std::size_t>(got));
  }
}

bool DriverLink::has_line() {
  pollfd watched{socket_, POLLIN, 0};
  return read_.find('\n') != std::string::npos || ::poll(&watched, 1, 0) > 0;
}

void DriverLink::write_line(const std::string& line) {
  const std::string bytes = line + "\n";
  const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  must(sent == static_cast<ssize_t>(bytes.size()), "send to the driver");
}

Buffer::Buffer(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, whole)));
  must(memory_ != nullptr, "aligned_alloc");
  std::memset(memory_.get(), 0, whole);
}

void Buffer::Free::operator()(char* memory) const { std::free(memory); }

void serve_rounds(const std::string& path, int rank, MeasuredSystem& system) {
  DriverLink driver(path, rank);
  for (std::string line = driver.read_line(); !line.empty(); line = driver.read_line()) {
    driver.write_line(answer(line, system));
  }
}

void bind_to_core(int rank) {
  const std::vector<int> cpus = usable_cpus();
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cpus[static_cast<std::size_t>(rank) % cpus.size()], &own);
  sched_setaffinity(0, sizeof own, &own);
}

}  // namespace ddprun::benchmarks
