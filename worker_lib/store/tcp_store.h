// What is behind connect_tcp_store(): a StoreClient as a Store. Threads: as a StoreClient.
#pragma once

#include <memory>

#include "ddprun/store.h"
#include "rendezvous/store/client.h"

namespace ddprun {

std::shared_ptr<Store> make_store(std::unique_ptr<StoreClient> client);

}  // namespace ddprun
