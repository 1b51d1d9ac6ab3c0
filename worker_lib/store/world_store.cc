#include "worker_lib/store/world_store.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <thread>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/parse_number.h"
#include "base/random_id.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/core/backoff.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/local_address.h"
#include "rendezvous/store/client.h"
#include "worker_lib/store/result_store.h"
#include "worker_lib/store/tcp_store.h"

namespace ddprun {
namespace {

// Every key of the worker library begins with it. So PyTorch's keys in the same store cannot
// collide with ours.
const std::string kPrefix = "ddprun/";
const std::string kByHand = "ddprun/by-hand";

// A launcher's store is running before its workers.
constexpr Duration kPatienceWithLauncher = std::chrono::minutes(5);
// A store that has not answered for this long is treated as gone. This also limits how long the
// end of a world waits for the store.
constexpr Duration kAnswerPatience = std::chrono::minutes(1);
// An earlier run has this much time to release its port, file or store. A ddp-store has the same
// time to start.
constexpr Duration kPatienceWithOthers = std::chrono::seconds(5);
// Timeout of one check of who has the port or wrote the file.
constexpr Duration kOneLook = std::chrono::seconds(2);
constexpr Duration kLooksPause = std::chrono::milliseconds(50);
constexpr Duration kLookUpPatience = std::chrono::seconds(20);
// The file is checked less and less often, because many may share its file system.
constexpr BackoffOptions kFilePauses{.first = std::chrono::milliseconds(10),
                                     .longest = std::chrono::seconds(1)};

// Returns an error that is retried for a while: the resource of another run is in the way, or
// not there yet.
Error in_the_way(std::string cause) {
  return Error{.kind = ErrorKind::kConnection, .cause = std::move(cause)};
}

bool is_worth_a_retry(const Error& error) { return error.kind == ErrorKind::kConnection; }

// Calls `attempt` until it succeeds, fails permanently, the deadline has passed, or next_pause()
// returns nullopt.
template <class Try, class NextPause>
Result<void> with_patience(const Deadline& deadline, Try attempt, NextPause next_pause) {
  std::optional<Error> last;
  for (;;) {
    const Deadline look(kOneLook);
    const Result<void> done = attempt();
    if (done || !is_worth_a_retry(done.error())) return done;
    // An attempt that the deadline has cut short tells less than the one before.
    if (deadline.passed() && last && !look.passed()) return *last;
    const std::optional<Duration> pause = next_pause();
    if (!pause || deadline.remaining() <= *pause) return done;
    last = done.error();
    std::this_thread::sleep_for(*pause);
  }
}

// Adds `more` to the number of worlds that this process has been in, by store and rank, and returns
// it. Used for a launcher's store only.
int count_worlds(const std::string& place, int more) {
  static std::mutex mutex;
  static std::map<std::string, int> counts;
  const std::lock_guard lock(mutex);
  return counts[place] += more;
}

std::string generation_name(const WorkerEnv& env) {
  return env.run_id + "/generation-" + to_text(env.generation);
}

// --- rank 0's announcement of the world

struct WorldNote {
  int size = 0;
  std::string token;
};

Result<WorldNote> read_note(const std::string& text) {
  const std::size_t space = text.find(' ');
  const auto size = parse_number<int>(std::string_view(text).substr(0, space));
  if (!size || space == text.npos) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "read the record of rank 0",
                 .cause = "it was not written by this version of ddprun"};
  }
  return WorldNote{.size = *size, .token = text.substr(space + 1)};
}

// --- where rank 0 hosts

// Returns the address on which rank 0 must listen so that the others can reach it at `host`;
// nullopt: `host` is another host. For an address of this host, returns that address; for a
// loopback name, its address. For the name of this host, returns "*", because others may resolve
// it to another of its addresses.
Result<std::optional<std::string>> listening_host(const HostPort& address, Duration allowed) {
  const auto own = [](const SocketAddress& one) { return is_local_address(one); };
  if (const auto numeric = numeric_address(address)) {
    return own(*numeric) ? std::optional(address.host) : std::nullopt;
  }
  const Result<std::vector<SocketAddress>> found = resolve(address, allowed);
  if (!found) return Error(found.error());
  if (std::ranges::none_of(*found, own)) return std::optional<std::string>();
  return std::optional<std::string>(is_loopback_host(address.host) ? found->front().host() : "*");
}

// Returns whether a process listens at the address, even if it does not answer.
bool accepts_connections(const HostPort& address, const Deadline& deadline) {
  const auto found = resolve(address, deadline.remaining());
  return found && std::ranges::any_of(*found, [&](const SocketAddress& one) {
           return BlockingSocket::connect(one, deadline).has_value();
         });
}

HostPort reached_from_here(const HostPort& listening) {
  const auto numeric = numeric_address(listening);
  const bool is_any = listening.host == "::" || listening.host == "0.0.0.0";
  return is_any || !numeric ? HostPort{.host = "127.0.0.1", .port = listening.port} : listening;
}

// Checks whether a store that already runs at rank 0's address may be used. It must be one of
// ours, with keys only of jobs that were started by hand, as ddp-store is. Any other store is
// another job's.
Result<void> check_standing_by(StoreClient& store) {
  const Error foreign = in_the_way("the store there is another job's");
  if (!store.is_ours()) return foreign;
  const Result<std::int64_t> all = store.num_keys();
  const Result<std::vector<std::string>> by_hand = store.list_keys();
  if (!all) return all.error();
  if (!by_hand) return by_hand.error();
  if (static_cast<std::size_t>(*all) != by_hand->size()) return foreign;
  return {};
}

}  // namespace

class WorldStore::Opening {
 public:
  explicit Opening(const WorldStoreOptions& options)
      : options_(options),
        plan_(options.plan),
        by_hand_(kByHand + "/" + generation_name(options.plan.env) + "/"),
        deadline_(options.timeout) {}

  Result<Parts> open() {
    if (options_.local_address) {  // so that an error in it is reported before others see this rank
      Result<std::string> own = own_address();
      if (!own) return own.error();
      parts_.address = std::move(*own);
    }
    const Result<void> opened = plan_.meet_at == MeetAt::kAgentStore ? open_launchers()
                                : plan_.env.rank == Rank(0)          ? open_as_first()
                                                                     : open_as_other();
    if (!opened) return opened.error();
    if (parts_.address.empty()) {
      const Result<void> addressed = find_address();
      if (!addressed) return addressed.error();
    }
    const bool is_hosted = plan_.meet_at == MeetAt::kAddress || plan_.meet_at == MeetAt::kFile;
    if (is_hosted) parts_.departures = parts_.name + "/left";
    parts_.others = plan_.env.world_size - 1;
    return std::move(parts_);
  }

 private:
  // --- a launcher's store

  Result<void> open_launchers() {
    // A store may survive a restart, as torchrun's does. Addresses of the previous generation
    // must not be found in it.
    parts_.name = kPrefix + generation_name(plan_.env) + "/world";
    parts_.place = to_text(plan_.address) + " " + parts_.name + " " + to_text(plan_.env.rank);
    const int before = count_worlds(parts_.place, 0);
    if (before > 0) parts_.name += concat("-", before + 1);
    return connect(plan_.address, std::min(options_.timeout, kPatienceWithLauncher));
  }

  enum class Tries { kMany, kOne };
  Result<void> connect(const HostPort& address, Duration patience, Tries tries = Tries::kMany) {
    Result<std::unique_ptr<StoreClient>> client =
        StoreClient::connect({.address = address,
                              .connect_timeout = patience,
                              .timeout = std::min(options_.timeout, kAnswerPatience),
                              .tries_once = tries == Tries::kOne});
    if (!client) return client.error();
    parts_.store = make_store(std::move(*client));
    return {};
  }

  // --- rank 0

  Result<void> open_as_first() {
    const auto come_and_claim = [&]() -> Result<void> {
      const Result<void> found = come_by_store();
      return found ? claim() : found;
    };
    const Result<void> done =
        with_patience(Deadline(std::min(options_.timeout, kPatienceWithOthers)), come_and_claim,
                      [] { return std::optional(kLooksPause); });
    if (!done || plan_.meet_at != MeetAt::kFile) return done;
    Result<PublishedAddress> note = PublishedAddress::publish(
        plan_.file, {.endpoint = parts_.hosted->address(), .token = token_});
    if (!note) return note.error();
    parts_.note.emplace(std::move(*note));
    return {};
  }

  Result<void> come_by_store() {
    if (plan_.meet_at == MeetAt::kAddress) return host_or_find();
    if (plan_.meet_at == MeetAt::kFile) return host_for_file();
    parts_.store = options_.given;
    return {};
  }

  Result<void> host_or_find() {
    const std::string doing = "host the store at " + to_text(plan_.address);
    const auto host =
        listening_host(plan_.address, std::min(deadline_.remaining(), kLookUpPatience));
    if (!host) return host.error().within(doing);
    std::string why_not = plan_.address.host + " is not an address of this host";
    if (*host) {
      Result<Listener> listener = listen_tcp(HostPort{.host = **host, .port = plan_.address.port});
      if (listener) return host_at(std::move(*listener));
      if (listener.error().sys_errno != EADDRINUSE) {
        return listener.error().within("rank 0 hosts the store");
      }
      why_not = "the port is taken";
    }
    const Result<void> found = find();
    if (found) return found;
    Error error = in_the_way(
        why_not + ", and " + found.error().message() + ". " +
        (*host ? "Give each job its own port" : "Start rank 0 on the host that has the address"));
    return std::move(error).within(doing);
  }

  Result<void> host_at(Listener listener) {
    Result<std::unique_ptr<HostedStore>> hosted = HostedStore::start(std::move(listener));
    if (!hosted) return hosted.error();
    parts_.hosted = std::move(*hosted);
    return connect(reached_from_here(parts_.hosted->address()), deadline_.remaining());
  }

  // Uses a store that another process serves at rank 0's address.
  Result<void> find() {
    Result<std::unique_ptr<StoreClient>> client = StoreClient::connect({.address = plan_.address,
                                                                        .prefix = kByHand,
                                                                        .connect_timeout = kOneLook,
                                                                        .timeout = kOneLook,
                                                                        .tries_once = true});
    if (!client) return client.error();
    const Result<void> free = check_standing_by(**client);
    if (!free) return free;
    return connect(plan_.address, kOneLook, Tries::kOne);
  }

  Result<void> host_for_file() {
    const Result<void> free = check_file_is_free();
    if (!free) return free;
    const Result<std::string> host = own_address();
    if (!host) return host.error();
    Result<Listener> listener = listen_tcp(*host, plan_.env.ports);
    if (!listener) return listener.error().within("rank 0 hosts the store");
    return host_at(std::move(*listener));
  }

  // If the file's store is alive, the file is another job's. The file of a killed job is
  // replaced. A store that is connected to but stays silent is alive: its process may be stopped,
  // or its machine too busy.
  Result<void> check_file_is_free() {
    const Result<std::optional<StoreAddress>> note = read_init_file(plan_.file);
    if (!note) return note.error();
    if (!*note) return {};
    const HostPort& address = (*note)->endpoint;
    const auto one_look = [this] { return Deadline(std::min(deadline_.remaining(), kOneLook)); };
    if (!accepts_connections(address, one_look())) return {};
    const Deadline look = one_look();
    const Result<void> answers = come_to_address(**note);
    parts_.store.reset();
    if (!answers && !look.passed()) return {};
    const std::string why =
        answers ? concat("another job's rank 0 is at ", to_text(address),
                         ". Give each job its own file")
                : concat("a process at ", to_text(address),
                         " accepts connections and does not answer. If it is not another job's "
                         "rank 0, remove the file");
    return in_the_way(why).within("join at " + plan_.file);
  }

  Result<void> claim() {
    ResultStore store(*parts_.store);
    const Result<std::int64_t> claims = store.add(by_hand_ + "host", 1);
    if (!claims) return claims.error();
    if (*claims != 1) {
      parts_.store.reset();
      return in_the_way(
                 "a rank 0 of run '" + plan_.env.run_id +
                 "' is there already: another job uses this store, or a job that was killed has "
                 "left its keys. Give each job its own store or its own TORCHELASTIC_RUN_ID")
          .within("join at " + plan_.place);
    }
    parts_.claimed = by_hand_;
    parts_.name = by_hand_ + token_;
    return store.set(by_hand_ + "world", concat(plan_.env.world_size, " ", token_));
  }

  // --- the others

  // Waits the whole timeout for a store that is missing or ending: rank 0 may come later, after
  // an earlier run has ended. Waits only briefly if the store does not expect this rank.
  Result<void> open_as_other() {
    std::optional<Deadline> intruding;
    bool has_come = false;
    Backoff file_pauses{Rng(random_seed()), kFilePauses};
    const auto come_and_take_place = [&]() -> Result<void> {
      const Result<void> there = come_to_store();
      has_come = there.has_value();
      return there ? take_place(intruding) : there;
    };
    return with_patience(deadline_, come_and_take_place, [&]() -> std::optional<Duration> {
      if (intruding && intruding->passed()) return std::nullopt;
      return plan_.meet_at == MeetAt::kFile && !has_come ? file_pauses.next() : kLooksPause;
    });
  }

  Result<void> come_to_store() {
    if (plan_.meet_at == MeetAt::kFile) return come_to_file();
    if (plan_.meet_at == MeetAt::kGivenStore) {
      parts_.store = options_.given;
      return {};
    }
    const Result<void> connected = connect(plan_.address, deadline_.remaining());
    if (connected) return {};
    Error error = connected.error();
    error.cause += "; rank 0, which hosts the store, has not come, or not to this address";
    error.peer_rank = 0;
    return error;
  }

  Result<void> come_to_file() {
    const std::string doing = "connect to rank 0 at " + plan_.file;
    const Result<std::optional<StoreAddress>> note = read_init_file(plan_.file);
    if (!note) return note.error();
    std::string cause = "rank 0 has not written the file";
    if (*note) {
      const Result<void> there = come_to_address(**note);
      if (there) return there;
      cause = "rank 0 has not come: the file is of a job that has ended (" +
              there.error().message() + ")";
    }
    Error error = in_the_way(std::move(cause)).within(doing);
    error.waited = deadline_.waited();
    error.allowed = deadline_.allowed();
    error.peer_rank = 0;
    return error;
  }

  // Connects to the store that the init file names, if it is still the same store.
  Result<void> come_to_address(const StoreAddress& note) {
    const Result<void> connected =
        connect(note.endpoint, std::min(deadline_.remaining(), kOneLook), Tries::kOne);
    if (!connected) return connected;
    const Result<std::string> world =
        ResultStore(*parts_.store).get(by_hand_ + "world", Duration::zero());
    if (world && world->ends_with(" " + note.token)) return {};
    return in_the_way("another store is at " + to_text(note.endpoint) + " by now");
  }

  Result<void> take_place(std::optional<Deadline>& intruding) {
    const std::string doing = "join at " + plan_.place;
    ResultStore store(*parts_.store);
    const Result<std::string> text = store.get(by_hand_ + "world", deadline_.remaining());
    if (!text) {
      Error error = text.error();
      if (error.kind != ErrorKind::kTimeout) return error;
      error = timeout_error(doing, "rank 0 did not come", deadline_);
      error.peer_rank = 0;
      return error;
    }
    const Result<WorldNote> world = read_note(*text);
    if (!world) return world.error();
    const std::string name = by_hand_ + world->token;
    std::string why;
    if (world->size != plan_.env.world_size) {
      why = concat("rank 0's world has ", world->size, " ranks, this rank's has ",
                   plan_.env.world_size);
    } else {
      const Result<std::int64_t> comers = store.add(name + "/rank/" + to_text(plan_.env.rank), 1);
      if (!comers) return comers.error();
      if (*comers != 1) why = "a rank " + to_text(plan_.env.rank) + " is already in this world";
    }
    if (why.empty()) {
      parts_.name = name;
      return {};
    }
    if (!intruding) intruding.emplace(kPatienceWithOthers);
    return in_the_way(why + ": another job uses the same address, or a process was started twice")
        .within(doing);
  }

  // --- this rank's address

  Result<std::string> own_address() const {
    const std::vector<InterfaceAddress> own = interface_addresses();
    if (!options_.local_address) return likely_local_address(own);
    Result<std::string> found = find_local_address(
        *options_.local_address, own, std::min(deadline_.remaining(), kLookUpPatience));
    if (!found) return found.error().within("InitOptions::local_address");
    return found;
  }

  // Finds this rank's address: the one on the route to the store. That route may stay on this
  // host because the store is here, while other ranks may be on other hosts. The most likely
  // address is used then.
  Result<void> find_address() {
    Result<std::string> known = ResultStore(*parts_.store).local_address();
    if (!known) return known.error();
    const bool stays_here = !plan_.address.host.empty() && is_loopback_host(plan_.address.host);
    const bool is_launchers = plan_.meet_at == MeetAt::kAgentStore;
    const bool leaves_host = !known->empty() && !is_loopback_host(*known);
    if (leaves_host || stays_here || is_launchers) {
      parts_.address = std::move(*known);
      return {};
    }
    Result<std::string> own = own_address();
    if (!own) return own.error();
    parts_.address = std::move(*own);
    return {};
  }

  const WorldStoreOptions& options_;
  const StartPlan& plan_;
  const std::string by_hand_;
  const std::string token_ = random_hex(16);
  const Deadline deadline_;
  Parts parts_;
};

Result<std::unique_ptr<WorldStore>> WorldStore::open(const WorldStoreOptions& options) {
  Result<Parts> parts = Opening(options).open();
  if (!parts) return parts.error();
  return std::unique_ptr<WorldStore>(new WorldStore(std::move(*parts)));
}

WorldStore::~WorldStore() { release(); }

// The order matters: a rank that comes between the two calls waits for the next rank 0. If the
// store is gone, there is nothing to release.
void WorldStore::release() {
  if (parts_.claimed.empty()) return;
  const std::string base = std::exchange(parts_.claimed, {});
  ResultStore store(*parts_.store);
  if (store.delete_key(base + "world")) store.delete_key(base + "host");
}

void WorldStore::world_is_formed() {
  parts_.note.reset();
  if (!parts_.place.empty()) count_worlds(parts_.place, 1);
}

bool WorldStore::await_leave(Duration patience) {
  const bool is_first = !parts_.claimed.empty();
  release();
  if (!parts_.hosted) {
    // If the host is gone, there is nothing to wait for.
    if (!is_first && !parts_.departures.empty()) count_departures(1);
    return true;
  }
  const Deadline deadline(patience);
  while (parts_.hosted->connections() > 1 && count_departures(0) < parts_.others) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::min(kLooksPause, deadline.remaining()));
  }
  return true;
}

// Adds `more` to the count and returns it; 0 if the store does not answer.
std::int64_t WorldStore::count_departures(std::int64_t more) {
  const Result<std::int64_t> departures = ResultStore(*parts_.store).add(parts_.departures, more);
  return departures ? *departures : 0;
}

}  // namespace ddprun
