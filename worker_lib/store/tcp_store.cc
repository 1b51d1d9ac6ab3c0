#include "worker_lib/store/tcp_store.h"

#include <utility>

#include "base/deadline.h"
#include "rendezvous/net/listen.h"
#include "worker_lib/store/hosted_store.h"
#include "worker_lib/util/public_error.h"

namespace ddprun {
namespace {

class TcpStore final : public Store {
 public:
  explicit TcpStore(std::unique_ptr<StoreClient> client) : client_(std::move(client)) {}

  void set(const std::string& key, const std::string& value) override {
    value_or_throw(client_->set(key, value));
  }
  std::string get(const std::string& key, std::chrono::nanoseconds timeout) override {
    return value_or_throw(client_->get(key, timeout));
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                     std::chrono::nanoseconds timeout) override {
    return value_or_throw(client_->multi_get(keys, timeout));
  }
  bool check(const std::vector<std::string>& keys) override {
    return value_or_throw(client_->check(keys));
  }
  std::int64_t add(const std::string& key, std::int64_t delta) override {
    return value_or_throw(client_->add(key, delta));
  }
  bool delete_key(const std::string& key) override {
    return value_or_throw(client_->delete_key(key));
  }
  std::string local_address() const override { return client_->local_address(); }

 private:
  const std::unique_ptr<StoreClient> client_;
};

}  // namespace

std::vector<std::string> Store::multi_get(const std::vector<std::string>& keys,
                                          std::chrono::nanoseconds timeout) {
  const Deadline deadline(timeout);
  std::vector<std::string> values;
  for (const std::string& key : keys) values.push_back(get(key, deadline.remaining()));
  return values;
}

std::shared_ptr<Store> make_store(std::unique_ptr<StoreClient> client) {
  return std::make_shared<TcpStore>(std::move(client));
}

std::shared_ptr<Store> connect_tcp_store(const TcpStoreOptions& options) {
  return make_store(
      value_or_throw(StoreClient::connect({.address = {.host = options.host, .port = options.port},
                                           .prefix = options.prefix,
                                           .connect_timeout = options.connect_timeout,
                                           .timeout = options.timeout})));
}

TcpStoreServer::TcpStoreServer(const TcpStoreServerOptions& options)
    : hosted_(value_or_throw(HostedStore::start(
          value_or_throw(listen_tcp(HostPort{.host = options.host, .port = options.port}))))) {}

TcpStoreServer::~TcpStoreServer() = default;

const std::string& TcpStoreServer::host() const { return hosted_->address().host; }
std::uint16_t TcpStoreServer::port() const { return hosted_->address().port; }

}  // namespace ddprun
