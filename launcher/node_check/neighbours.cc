#include "launcher/node_check/neighbours.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/parse_number.h"
#include "base/poll_until.h"
#include "base/random_id.h"
#include "base/split.h"
#include "launcher/process/side_by_side.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/store/client.h"

namespace ddprun {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 10;  // in each direction
constexpr Duration kMeet = std::chrono::seconds(3);
constexpr Duration kExchange = std::chrono::seconds(2);
constexpr Duration kToken = std::chrono::milliseconds(200);  // once its first byte is here
constexpr std::size_t kMostPending = 16;
constexpr std::size_t kTokenBytes = 32;  // as hex
constexpr std::size_t kHostBytes = 64;
constexpr std::size_t kSpeedBytes = 24;  // a decimal number
constexpr std::string_view kNoPart = "-";
constexpr char kTry = 't';
constexpr char kEnd = 'e';

std::string key_of(NodeRank node) { return concat("node_check/", node); }

std::string padded(std::string text, std::size_t bytes) {
  text.resize(bytes, ' ');
  return text;
}
std::string trimmed(const std::string& text) { return text.substr(0, text.find(' ')); }

Result<std::string> receive_text(BlockingSocket& socket, std::size_t bytes,
                                 const Deadline& deadline) {
  std::string text(bytes, ' ');
  for (std::size_t got = 0; got < bytes;) {
    const Result<std::size_t> came = socket.receive(std::span(text).subspan(got), deadline);
    if (!came) return came.error();
    got += *came;
  }
  return text;
}

// Sends the block and receives it again. Returns the bytes each second.
Result<double> exchange(BlockingSocket& socket, const std::string& block,
                        const Deadline& deadline) {
  const TimePoint start = BootClock::now();
  if (const Result<void> sent = socket.send_all(std::string(1, kTry) + block, deadline); !sent)
    return sent.error();
  const Result<std::string> back = receive_text(socket, block.size(), deadline);
  if (!back) return back.error();
  if (*back != block) return Error{.kind = ErrorKind::kCorrupt, .cause = "bytes were changed"};
  const std::chrono::duration<double> took = BootClock::now() - start;
  return static_cast<double>(2 * block.size()) / std::max(took.count(), 1e-9);
}

// Connects to the neighbour that listens, and measures.
void measure_out(const NeighbourPlan& plan, StoreClient& store, NodeRank node,
                 std::optional<LinkMeasurement>& out) {
  const Result<std::string> found = store.get(key_of(node), kMeet);
  if (!found || *found == kNoPart) return;
  const std::vector<std::string_view> words = split(*found, ' ');
  if (words.size() != 3) return;
  const Result<HostPort> address = parse_host_port(words[0]);
  const std::optional<SocketAddress> numeric = address ? numeric_address(*address) : std::nullopt;
  if (!numeric) return;
  LinkMeasurement link{.node = node, .host = std::string(words[2])};
  const Deadline deadline(kExchange);
  Result<BlockingSocket> socket = BlockingSocket::connect(*numeric, deadline);
  std::optional<Error> error;
  if (!socket) {
    error = socket.error();
  } else if (const Result<void> sent = socket->send_all(
                 padded(std::string(words[1]), kTokenBytes) + padded(plan.host, kHostBytes),
                 deadline);
             !sent) {
    error = sent.error();
  }
  const std::string block(kBytes, 'x');
  for (int i = 0; !error && i < kTries && (i < kLeastTries || link.bytes_per_s < plan.enough);
       ++i) {
    const Result<double> tried = exchange(*socket, block, deadline);
    if (!tried) {
      error = tried.error();
    } else {
      link.bytes_per_s = std::max(link.bytes_per_s, *tried);
    }
  }
  const bool is_cut_short = error && error->kind == ErrorKind::kTimeout && link.bytes_per_s > 0;
  if (error && !is_cut_short) link.error = error->message();
  if (!error) {
    socket->send_all(
        kEnd + padded(std::to_string(static_cast<std::int64_t>(link.bytes_per_s)), kSpeedBytes),
        deadline);
  }
  out = std::move(link);
}

// Serves the neighbour that connects, and returns what it has measured. nullopt: it does not know
// the token.
std::optional<LinkMeasurement> serve(BlockingSocket socket, const std::string& token,
                                     NodeRank node) {
  const Result<std::string> head = receive_text(socket, kTokenBytes + kHostBytes, Deadline(kToken));
  if (!head || head->substr(0, kTokenBytes) != token) return std::nullopt;
  LinkMeasurement link{.node = node, .host = trimmed(head->substr(kTokenBytes))};
  const Deadline deadline(kExchange);
  TimePoint start = BootClock::now();
  for (;;) {
    Result<std::string> what = receive_text(socket, 1, deadline);
    const bool is_end = what && what->front() == kEnd;
    if (is_end) what = receive_text(socket, kSpeedBytes, deadline);
    if (is_end && what) {
      link.bytes_per_s = parse_number<double>(trimmed(*what)).value_or(0);
      return link;
    }
    if (what) what = receive_text(socket, kBytes, deadline);
    const Result<void> sent = what ? socket.send_all(*what, deadline) : Result<void>(what.error());
    if (!sent) {
      // The end of an exchange that was cut short: the last complete try says how fast it was.
      if (link.bytes_per_s == 0) link.error = sent.error().message();
      return link;
    }
    const std::chrono::duration<double> took = BootClock::now() - start;
    link.bytes_per_s =
        std::max(link.bytes_per_s, static_cast<double>(2 * kBytes) / std::max(took.count(), 1e-9));
    start = BootClock::now();
  }
}

// Waits for the neighbour that connects. Other connections, which send nothing, do not keep it
// waiting.
void measure_in(const Listener& listener, const std::string& token, NodeRank node,
                std::optional<LinkMeasurement>& in) {
  const Deadline deadline(kMeet);
  std::vector<UniqueFd> pending;
  while (!in) {
    std::vector<pollfd> watched{{.fd = listener.socket.get(), .events = POLLIN, .revents = 0}};
    for (const UniqueFd& one : pending) {
      watched.push_back({.fd = one.get(), .events = POLLIN, .revents = 0});
    }
    if (!poll_until(watched, deadline.when())) return;
    for (std::size_t i = pending.size(); i-- > 0 && !in;) {
      if (watched[i + 1].revents == 0) continue;
      Result<BlockingSocket> socket = BlockingSocket::of(std::move(pending[i]));
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
      if (socket) in = serve(std::move(*socket), token, node);
    }
    if (in || watched[0].revents == 0) continue;
    UniqueFd accepted(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!accepted.valid()) continue;
    if (pending.size() == kMostPending) pending.erase(pending.begin());
    pending.push_back(std::move(accepted));
  }
}

// Runs the body. Returns whether there was enough memory.
bool has_memory_for(const std::function<void()>& body) {
  try {
    body();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

std::vector<LinkMeasurement> measure_links(const NeighbourPlan& plan) {
  if (plan.node_count < 2) return {};
  const Result<std::unique_ptr<StoreClient>> store = StoreClient::connect(
      {.address = plan.store, .prefix = "ddprun", .connect_timeout = kMeet, .timeout = kMeet});
  if (!store) return {};
  const std::string token = random_hex(kTokenBytes / 2);
  std::optional<Listener> listener;
  std::string published(kNoPart);
  if (plan.takes_part) {
    Result<Listener> made = listen_tcp((*store)->local_address(), plan.ports);
    if (made) {
      listener = std::move(*made);
      published = concat(to_text(listener->address), " ", token, " ", plan.host);
    }
  }
  const Result<void> sent = (*store)->set(key_of(plan.node), published);
  // A set has no answer. This waits until it has arrived.
  if (!sent || !(*store)->check({key_of(plan.node)}) || !listener) return {};
  const int count = plan.node_count;
  const NodeRank next((plan.node.value + 1) % count);
  const NodeRank previous((plan.node.value + count - 1) % count);
  std::optional<LinkMeasurement> out, in;
  bool out_done = false, in_done = false;
  side_by_side(
      {[&] { out_done = has_memory_for([&] { measure_out(plan, **store, next, out); }); },
       [&] { in_done = has_memory_for([&] { measure_in(*listener, token, previous, in); }); }});
  if (!out_done || !in_done) throw std::bad_alloc();
  std::vector<LinkMeasurement> links;
  if (out) links.push_back(std::move(*out));
  if (in) links.push_back(std::move(*in));
  return links;
}

}  // namespace ddprun
