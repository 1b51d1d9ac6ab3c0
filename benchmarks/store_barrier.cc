// How long a barrier of 1,000 clients takes, for store_barrier.py, which starts the servers.
//
//   store_barrier DDP_STORE_PORT LIBUV_PORT [CLIENTS]
//
// All clients are connections of this one process (many_clients.h), which costs the same with every
// server. The floor is a bare server that is sent the same bytes and answers each at once, plain recv()
// and send(): what the kernel and this process take. Servers alternate; medians are printed.
//
//   add + wait   as torch.distributed.elastic.utils.store does it: ADD; whoever is the last one SETs a
//                key, for which all WAIT
//   BARRIER      one request and one answer for each client; PyTorch 2.11's servers do not have it
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor_limit.h"
#include "benchmarks/many_clients.h"
#include "rendezvous/core/wire_format.h"

namespace ddprun::benchmarks {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = 31;
constexpr std::size_t kSumBytes = 8;
constexpr std::size_t kDoneBytes = 1;

std::string request(Command command, std::string_view key, std::string_view value = "",
                    std::int64_t number = 0) {
  std::vector<std::string_view> strings{key};
  if (command == Command::kSet) strings.push_back(value);
  std::string bytes;
  put_request(bytes, command, strings, number);
  return bytes;
}

// Of one server; each barrier has keys of its own.
class Clients {
 public:
  // hello: what each says first, without an answer.
  Clients(std::uint16_t port, std::size_t count, const std::string& hello)
      : clients_(port, [this](std::size_t client, std::string_view bytes) { take(client, bytes); }),
        received_(count) {
    for (std::size_t client = 0; client < count; ++client) {
      clients_.connect();
      if (!hello.empty()) clients_.send(client, hello);
    }
  }

  double add_and_wait(int number) {
    const std::string name = "/barrier" + std::to_string(number);
    last_ = name + "/last_member";
    wait_ = request(Command::kWait, last_);
    sum_bytes_ = kSumBytes;
    return all_ask(request(Command::kAdd, name + "/num_members", "", 1));
  }
  double barrier(int number) {
    sum_bytes_ = 0;
    return all_ask(request(Command::kBarrier, "/one" + std::to_string(number), "",
                           static_cast<std::int64_t>(received_.size())));
  }

 private:
  double all_ask(const std::string& first) {
    through_ = added_ = 0;
    std::fill(received_.begin(), received_.end(), std::string());
    const TimePoint begin = BootClock::now();
    for (std::size_t client = 0; client < received_.size(); ++client) {
      clients_.send(client, first);
      if (client % 32 == 31) clients_.serve(0ns);
    }
    while (through_ < received_.size()) {
      clients_.serve(1s);
      if (BootClock::now() > begin + 60s) give_up("a client is not let through its barrier");
    }
    return to_ms(BootClock::now() - begin);
  }
  void take(std::size_t client, std::string_view bytes) {
    std::string& received = received_[client];
    received += bytes;
    if (received.size() == sum_bytes_ + kDoneBytes) ++through_;
    if (sum_bytes_ == 0 || received.size() != sum_bytes_) return;
    // Its sum has come. (It counts itself: the bare server cannot.)
    std::string next = wait_;
    if (++added_ == received_.size()) next = request(Command::kSet, last_, "<val>") + wait_;
    clients_.send(client, next);
  }

  ManyClients clients_;
  std::vector<std::string> received_;  // in this barrier
  std::string last_;
  std::string wait_;
  std::size_t sum_bytes_ = 0;
  std::size_t added_ = 0;
  std::size_t through_ = 0;
};

// Answers as long as the store's, at once.
BareAnswer answer(std::string_view bytes) {
  switch (bytes[0]) {
    case 4: return {.bytes = kSumBytes};  // ADD
    case 1:
    case 6:
    case 18: return {.bytes = kDoneBytes};  // SET with WAIT, WAIT, BARRIER
    default: return {};
  }
}

void run(std::uint16_t ours_port, std::uint16_t theirs_port, std::size_t count) {
  const BareServer bare(answer);
  std::string handshake;
  put_handshake(handshake);
  Clients ours(ours_port, count, handshake), theirs(theirs_port, count, handshake);
  Clients floor(bare.port, count, "");
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round < kRounds; ++round) {
    times["ours, add + wait"].push_back(ours.add_and_wait(round));
    times["theirs, add + wait"].push_back(theirs.add_and_wait(round));
    times["floor, add + wait"].push_back(floor.add_and_wait(round));
    times["ours, BARRIER"].push_back(ours.barrier(round));
    times["floor, BARRIER"].push_back(floor.barrier(round));
  }
  const auto median = [&](const std::string& name) { return percentile(times.at(name), 0.5); };
  std::printf("%-24s%12s%12s%12s%8s\n", "milliseconds", "ddp-store", "libuv", "floor", "R");
  const double theirs_time = median("theirs, add + wait");
  for (const std::string way : {"add + wait", "BARRIER"}) {
    const std::string label = std::to_string(count) + " clients, " + way;
    std::printf("%-24s%12.1f%12.1f%12.1f%8.2f\n", label.c_str(), median("ours, " + way),
                theirs_time, median("floor, " + way), theirs_time / median("ours, " + way));
  }
  std::printf("libuv has no BARRIER: its add + wait stands in both rows\n");
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) {
  using namespace ddprun::benchmarks;
  if (argc < 3) give_up("store_barrier DDP_STORE_PORT LIBUV_PORT [CLIENTS]");
  ddprun::raise_descriptor_limit();
  const auto port = [](const char* text) { return static_cast<std::uint16_t>(std::atoi(text)); };
  run(port(argv[1]), port(argv[2]), argc > 3 ? static_cast<std::size_t>(std::atoi(argv[3])) : 1000);
  return 0;
}
