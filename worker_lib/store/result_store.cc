#include "worker_lib/store/result_store.h"

#include <exception>

#include "base/concat.h"
#include "worker_lib/util/public_error.h"

namespace ddprun {
namespace {

// Returns what `call` returns, or its exception as an Error. Errors of our own stores say what
// was being done; those of a user's store may not.
template <class T, class Call>
Result<T> result_of(const char* verb, const std::string& key, Call call) {
  const auto doing = [&] { return concat(verb, " '", key, "' in the store"); };
  try {
    return Result<T>(call());
  } catch (const DistError& thrown) {
    return from_dist_error(thrown, "");
  } catch (const std::exception& thrown) {
    return Error{.kind = ErrorKind::kSystem, .doing = doing(), .cause = thrown.what()};
  } catch (...) {
    return Error{.kind = ErrorKind::kSystem,
                 .doing = doing(),
                 .cause = "an exception that is not a std::exception"};
  }
}

std::string first_of(const std::vector<std::string>& keys) {
  return keys.empty() ? std::string() : keys[0];
}

}  // namespace

Result<void> ResultStore::set(const std::string& key, const std::string& value) {
  const Result<bool> done = result_of<bool>("set", key, [&] {
    store_.set(key, value);
    return true;
  });
  if (!done) return done.error();
  return {};
}

Result<std::string> ResultStore::get(const std::string& key, Duration timeout) {
  return result_of<std::string>("get", key, [&] { return store_.get(key, timeout); });
}

Result<std::vector<std::string>> ResultStore::multi_get(const std::vector<std::string>& keys,
                                                        Duration timeout) {
  using Values = std::vector<std::string>;
  Result<Values> values =
      result_of<Values>("get", first_of(keys), [&] { return store_.multi_get(keys, timeout); });
  if (values && values->size() != keys.size()) {
    return Error{
        .kind = ErrorKind::kProtocol,
        .doing = "get '" + first_of(keys) + "' in the store",
        .cause = concat("it returned ", values->size(), " values for ", keys.size(), " keys")};
  }
  return values;
}

Result<bool> ResultStore::check(const std::vector<std::string>& keys) {
  return result_of<bool>("check", first_of(keys), [&] { return store_.check(keys); });
}

Result<std::int64_t> ResultStore::add(const std::string& key, std::int64_t delta) {
  return result_of<std::int64_t>("add", key, [&] { return store_.add(key, delta); });
}

Result<bool> ResultStore::delete_key(const std::string& key) {
  return result_of<bool>("delete", key, [&] { return store_.delete_key(key); });
}

Result<std::string> ResultStore::local_address() {
  return result_of<std::string>("the local address", "", [&] { return store_.local_address(); });
}

}  // namespace ddprun
