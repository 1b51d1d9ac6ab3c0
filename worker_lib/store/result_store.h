// ResultStore: the calls of a Store as Results, for code without exceptions. A user's Store may
// throw anything: it ends here.
//
// Made where it is needed; the Store outlives it. Threads: as the Store's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "ddprun/store.h"

namespace ddprun {

class ResultStore {
 public:
  explicit ResultStore(Store& store) : store_(store) {}

  Result<void> set(const std::string& key, const std::string& value);
  Result<std::string> get(const std::string& key, Duration timeout);
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Duration timeout);
  Result<bool> check(const std::vector<std::string>& keys);
  Result<std::int64_t> add(const std::string& key, std::int64_t delta);
  Result<bool> delete_key(const std::string& key);
  Result<std::string> local_address();

 private:
  Store& store_;
};

}  // namespace ddprun
