// locked_store(): lets several threads share a Store that only one thread at a time may use. Groups
// that bootstrap through it are formed by one thread, and their first calls are made by others.
//
// No thread holds the lock during a long wait: a wait consists of short ones. Shares ownership
// of the underlying store. Any thread; errors are those of that store.
#pragma once

#include <memory>

#include "ddprun/store.h"

namespace ddprun {

std::shared_ptr<Store> locked_store(std::shared_ptr<Store> store);

}  // namespace ddprun
