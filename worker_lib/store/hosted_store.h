// HostedStore: a store that this process serves to others, on a thread of its own (ddprun-store):
// behind TcpStoreServer, and rank 0's where no launcher hosts one.
//
// Its owner's thread makes, asks and destroys it.
#pragma once

#include <cstddef>
#include <memory>

#include "base/result.h"
#include "rendezvous/net/listen.h"

namespace ddprun {

class HostedStore {
 public:
  // Serves from now on. kSystem: no thread could be started.
  static Result<std::unique_ptr<HostedStore>> start(Listener listener);
  // Closes every connection.
  ~HostedStore();
  HostedStore(const HostedStore&) = delete;
  HostedStore& operator=(const HostedStore&) = delete;

  const HostPort& address() const;
  // Clients that are connected now.
  std::size_t connections() const;

 private:
  struct Impl;
  explicit HostedStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
