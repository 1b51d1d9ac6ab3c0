// Measures how long an ordinary client's ADD takes while another client sends very large requests.
//
//   ddp-store --listen 127.0.0.1:29500 & store_neighbours 29500 [PART OF A NAME]
//
// The ordinary client sends an ADD every half millisecond. While one is in progress, the ADDs
// that are due cannot be sent. They count with the time that they would have waited. So a stall
// of the server counts as much as it lasts. For each kind of heavy client, seconds without it
// and seconds with it alternate, so other load of the machine affects both. The times of all
// rounds are put together. The heavy client works without a pause. The program works with any
// server of dialect M that has the commands.
//
// On few cores the server and the ordinary client also wait until the heavy client's thread
// gives up a core. `nice -n -20` before both programs removes most of this effect, and shows the
// server's own times: the heavy client returns to the ordinary priority.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/give_up.h"
#include "benchmarks/statistics.h"
#include "rendezvous/net/blocking_socket.h"
#include "tests/support/store_bytes.h"

namespace ddprun::benchmarks {
namespace {

using namespace std::chrono_literals;
using testing_support::request;

constexpr int kRounds = 3;
constexpr Duration kRound = 1500ms;
constexpr Duration kPace = 500us;
constexpr std::size_t kMostKeys = 131072;
constexpr std::size_t kWaiters = 2000;
constexpr std::size_t kPings = 50000;
constexpr std::string_view kValue = "0123456789abcdef";

std::uint16_t store_port = 0;

class Client {
 public:
  Client()
      : socket_(need(
            BlockingSocket::connect(*numeric_address({"127.0.0.1", store_port}), Deadline(10s)))) {
    send(testing_support::handshake());
  }
  void send(std::string_view bytes) { need(socket_.send_all(bytes, Deadline(60s))); }
  void receive(std::size_t count) {
    while (count > 0) {
      count -= need(socket_.receive({room_.data(), std::min(count, room_.size())}, Deadline(60s)));
    }
  }
  void ask(std::string_view bytes, std::size_t reply_bytes) {
    send(bytes);
    receive(reply_bytes);
  }

 private:
  BlockingSocket socket_;
  std::vector<char> room_ = std::vector<char>(1 << 20);
};

std::string repeated(const std::string& part, std::size_t times) {
  std::string whole;
  for (std::size_t i = 0; i < times; ++i) whole += part;
  return whole;
}

std::vector<std::string> many_keys(const std::string& name) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < kMostKeys; ++i) keys.push_back("/" + name + "/" + std::to_string(i));
  return keys;
}

std::vector<std::string_view> pairs_of(const std::vector<std::string_view>& keys) {
  std::vector<std::string_view> pairs;
  for (const std::string_view key : keys) pairs.insert(pairs.end(), {key, kValue});
  return pairs;
}

// Heavy: what a heavy client does again and again.
struct Heavy {
  const char* name;
  std::function<void()> act;
};

std::vector<Heavy> heavy_clients() {
  const std::vector<std::string> missing_keys = many_keys("missing");
  const std::vector<std::string> there_keys = many_keys("there");
  const std::vector<std::string_view> missing(missing_keys.begin(), missing_keys.end());
  const std::vector<std::string_view> there(there_keys.begin(), there_keys.end());
  const std::string set_there = request(Command::kMultiSet, pairs_of(there));
  const std::string wait = request(Command::kWait, missing);
  const std::string cancel = request(Command::kCancelWait);
  const std::string count = request(Command::kGetNumKeys);
  const std::string large(8 << 20, 'v');

  static Client client;
  client.ask(set_there + count, 8);
  std::size_t list_bytes = 8;
  for (const std::string_view key : there) list_bytes += 8 + key.size();
  const std::string set_add = request(Command::kAdd, {"/ordinary"}, 0);
  client.ask(set_add, 8);
  list_bytes += 8 + std::string_view("/ordinary").size();

  // Deletes the keys of the temporary clients: they must not be in the list of keys.
  std::string deletes;
  for (const std::string_view key : missing) deletes += request(Command::kDeleteKey, {key});

  // Sends no requests. It shows what a second busy thread of this process costs the ordinary
  // client.
  const auto compute = [] {
    volatile std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < 10'000'000; ++i) sum = sum + i;
  };

  return {
      {"floor: a thread that computes and asks nothing", compute},
      {"floor: a server kept busy by short requests",
       [bytes = repeated(request(Command::kPing), kPings)] { client.ask(bytes, 4 * kPings); }},
      {"CHECK of 131072 keys", [bytes = request(Command::kCheck, there)] { client.ask(bytes, 1); }},
      {"WAIT for 131072 keys, CANCEL_WAIT", [wait, cancel] { client.ask(wait + cancel, 1); }},
      {"WAIT for 131072 keys, close",
       [wait, count] {
         Client other;
         other.ask(wait + count, 8);  // its answer says that the WAIT has begun
       }},
      {"MULTI_GET of 131072 keys",
       [bytes = request(Command::kMultiGet, there)] {
         client.ask(bytes, kMostKeys * (8 + kValue.size()));
       }},
      {"MULTI_SET of 131072 keys that are there",
       [set_there, count] { client.ask(set_there + count, 8); }},
      {"LIST_KEYS of 131073 keys",
       [bytes = request(Command::kListKeys), list_bytes] { client.ask(bytes, list_bytes); }},
      {"SET and GET of 8 MiB",
       [bytes = request(Command::kSet, {"/large", large}) + request(Command::kGet, {"/large"}) +
                request(Command::kDeleteKey, {"/large"})] {
         client.ask(bytes, 8 + (8 << 20) + 8);
       }},
      {"2000 clients woken by one SET",
       [cancel, one_wait = request(Command::kWait, {"/go"}),
        set = request(Command::kSet, {"/go", ""}), forget = request(Command::kDeleteKey, {"/go"})] {
         static std::vector<Client> waiters(kWaiters);
         for (Client& waiter : waiters) waiter.send(one_wait);
         client.ask(cancel, 1);
         client.ask(set + forget, 8);
         for (Client& waiter : waiters) waiter.receive(1);
       }},
      {"MULTI_SET that ends a WAIT for 131072 keys, deletes",
       [wait, deletes, set = request(Command::kMultiSet, pairs_of(missing))] {
         static Client other;
         other.send(wait);
         client.ask(set, 0);
         other.receive(1);
         client.ask(deletes, 8 * kMostKeys);
       }},
  };
}

void add_for(Client& client, Duration length, std::vector<double>& microseconds) {
  static const std::string add = request(Command::kAdd, {"/ordinary"}, 1);
  for (const Deadline round(length); !round.passed();) {
    std::this_thread::sleep_for(kPace);
    const TimePoint begin = BootClock::now();
    client.ask(add, 8);
    for (Duration took = BootClock::now() - begin; took > 0ns; took -= kPace) {
      microseconds.push_back(std::chrono::duration<double, std::micro>(took).count());
    }
  }
}

void measure(const Heavy& heavy, Client& ordinary) {
  std::vector<double> alone, loaded;
  std::atomic<int> acts = 0;
  heavy.act();
  for (int round = 0; round < kRounds; ++round) {
    add_for(ordinary, kRound, alone);
    std::atomic<bool> end = false;
    std::thread neighbour([&] {
      setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 0);
      for (; !end; ++acts) heavy.act();
    });
    add_for(ordinary, kRound, loaded);
    end = true;
    neighbour.join();
  }
  const double p99_alone = percentile(alone, 0.99), p99 = percentile(loaded, 0.99);
  std::printf("%-52s %7.0f %7.0f | %7.0f %9.0f %9.0f | %+9.0f %6.1f\n", heavy.name,
              percentile(alone, 0.5), p99_alone, percentile(loaded, 0.5), p99,
              percentile(loaded, 1.0), p99 - p99_alone,
              acts / std::chrono::duration<double>(kRounds * kRound).count());
  std::fflush(stdout);
}

void run(const std::string& wanted) {
  Client ordinary;
  std::printf("%-52s %15s | %27s |\n", "ADD, microseconds", "alone", "with the heavy client");
  std::printf("%-52s %7s %7s | %7s %9s %9s | %9s %6s\n", "", "p50", "p99", "p50", "p99", "longest",
              "p99 more", "acts/s");
  for (const Heavy& heavy : heavy_clients()) {
    if (std::string_view(heavy.name).find(wanted) != std::string::npos) measure(heavy, ordinary);
  }
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) {
  using namespace ddprun::benchmarks;
  if (argc < 2) return 2;
  store_port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  run(argc > 2 ? argv[2] : "");
  return 0;
}
