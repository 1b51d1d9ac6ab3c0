// NameService: looks up names for the owner of an io_context, each on a thread of its own. Asio's
// resolver has a single thread: look-ups wait for each other, and each fork of a worker for them.
//
// One thread, which runs the io_context, makes all calls and gets all callbacks, never within a
// call. After end() no callback is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/result.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

class NameService {
 public:
  // find() asks again for an address that is older.
  static constexpr Duration kFresh = std::chrono::seconds(1);

  using LookUp = std::function<void(const HostPort&, ResolveHandler)>;
  explicit NameService(boost::asio::io_context& io, LookUp look_up = resolve_in_background);
  ~NameService() { end(); }
  NameService(const NameService&) = delete;
  NameService& operator=(const NameService&) = delete;

  // Looks up the name.
  void ask(const HostPort& address, ResolveHandler then);
  // Returns the addresses that are known of the name, and looks it up for the next call. Asks if
  // none is known. So a name that stops resolving goes on with its last addresses.
  void find(const HostPort& address, ResolveHandler then);
  void end();

 private:
  struct Receiver;
  struct Known {
    std::vector<SocketAddress> addresses;  // empty: none yet
    std::vector<ResolveHandler> waiting;   // for the first ones
    TimePoint fresh_until{};
    bool is_asking = false;
  };

  LookUp look_up_;
  std::shared_ptr<Receiver> receiver_;
  std::map<std::string, Known> known_;
};

}  // namespace ddprun
