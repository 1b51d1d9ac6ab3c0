// StateStore: where a service keeps its changes, so that another run of the service continues its
// jobs. StateWriter keeps them in a directory, EtcdState in etcd.
//
// The io_context's thread makes all calls and gets all callbacks, never within a call. After the
// destructor no callback is called.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "rendezvous/membership/core/job_state.h"

namespace ddprun {

struct StateStoreEvents {
  // All changes up to this number are durable.
  std::function<void(std::uint64_t number)> durable;
  // Changes cannot be made durable now. Called before a change written at that time is reported as
  // durable. It is called once until `well`, and again when more is known.
  std::function<void(const Error& why)> failed;
  // Writing works again.
  std::function<void()> well;
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // Queues a change for the next write. Its number must be larger than the last one.
  virtual void keep(std::uint64_t number, const StateChange& change) = 0;
};

}  // namespace ddprun
