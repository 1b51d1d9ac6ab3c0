// Makes the Store that connect_tcp_store() returns: a StoreClient as a Store. Thread rules are
// those of StoreClient.
#pragma once

#include <memory>

#include "ddprun/store.h"
#include "rendezvous/store/client.h"

namespace ddprun {

std::shared_ptr<Store> make_store(std::unique_ptr<StoreClient> client);

}  // namespace ddprun
