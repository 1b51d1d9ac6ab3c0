// HostedStore: a store that this process serves to others, on a thread of its own
// (ddprun-store). TcpStoreServer uses it, and so does rank 0 if no launcher hosts a store.
//
// Its owner's thread makes, queries and destroys it.
#pragma once

#include <cstddef>
#include <memory>

#include "base/result.h"
#include "rendezvous/net/listen.h"

namespace ddprun {

class HostedStore {
 public:
  // Starts to serve at once. kSystem: the thread could not be started.
  static Result<std::unique_ptr<HostedStore>> start(Listener listener);
  // Closes all connections.
  ~HostedStore();
  HostedStore(const HostedStore&) = delete;
  HostedStore& operator=(const HostedStore&) = delete;

  const HostPort& address() const;
  // Returns the number of clients that are connected now.
  std::size_t connections() const;

 private:
  struct Impl;
  explicit HostedStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
