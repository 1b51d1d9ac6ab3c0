// ResultStore: returns the results of a Store's calls as Results, for code without exceptions.
// It catches everything that a user's Store may throw.
//
// Make it where it is needed; the Store must outlive it. Thread rules are those of the Store.
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
