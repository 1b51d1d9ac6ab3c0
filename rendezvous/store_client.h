// StoreClient: one connection to a generation's store, speaking the c10d TCPStore protocol (dialect M,
// PyTorch 2.2 and newer; docs/wire_protocol.md). It works against our store and against PyTorch's.
//
// For worker_lib and tests. Plain sockets, no event loop and no thread of its own: a call blocks its
// caller until the answer is there or its deadline has passed. One thread at a time may use a client;
// make a second client for a second thread, as a blocked wait holds the connection.
//
// Like PyTorch's client it puts "/" (and the prefix, if one is given) in front of every key, so that
// C++ and Python workers of one job see the same keys.
//
// Errors name the key, the peer, the time waited and allowed. kTimeout of a wait leaves the client
// usable; after kConnection or kProtocol the client is finished and every call says so again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct StoreClientOptions {
  std::string host;  // name or numeric address; no reverse look-up is ever made
  std::uint16_t port = 0;
  std::string prefix;                                     // "group/0" makes keys "/group/0/<key>"
  Duration connect_timeout = std::chrono::seconds(300);  // resolving, connecting with retries, handshake
  Duration timeout = std::chrono::seconds(300);          // of a single request's answer
};

class StoreClient {
 public:
  // Connects and shakes hands; a refused connection is tried again with growing pauses (the store may
  // not be up yet) until connect_timeout.
  static Result<std::unique_ptr<StoreClient>> connect(StoreClientOptions options);
  ~StoreClient();

  // Stores or overwrites.
  Result<void> set(std::string_view key, std::string_view value);
  // The value, waiting for the key to exist.
  Result<std::string> get(std::string_view key, Duration timeout);
  // The values in the order of the keys, waiting for all of them to exist.
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys, Duration timeout);
  // Adds to a decimal counter (missing = 0) and returns the sum.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta);
  // Waits until every key exists.
  Result<void> wait(const std::vector<std::string>& keys, Duration timeout);
  // Whether every key exists now.
  Result<bool> check(const std::vector<std::string>& keys);
  // Replaces `expected` by `desired`; returns what the key holds afterwards (for a missing key and a
  // non-empty expectation: `expected`, as PyTorch's server does).
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired);
  // True if the key existed.
  Result<bool> delete_key(std::string_view key);
  Result<void> append(std::string_view key, std::string_view value);
  Result<std::int64_t> num_keys();

  // Numeric address of this host on the way to the store: what other ranks can reach us at.
  const std::string& local_address() const { return local_address_; }
  const StoreClientOptions& options() const { return options_; }

 private:
  StoreClient(StoreClientOptions options, UniqueFd socket, std::string local_address);

  StoreClientOptions options_;
  UniqueFd socket_;
  std::string local_address_;
};

}  // namespace ddprun
