// Store: the keys and values through which ranks find each other. init() makes one. A program
// can pass its own (InitOptions::store), on top of anything that all its ranks can reach.
//
// The library uses it when a group is formed: each rank sets a short string and reads those of
// the others. No training data passes through it.
//
// Thread rule: the library uses a Store from one thread at a time. If the ranks are threads of
// one process and share one Store, many threads call it. A connection of connect_tcp_store()
// serves one thread at a time: a get() that waits holds it.
//
// Failures throw DistError. kTimeout: a key did not come in time; the store stays usable.
// kConnection: the store is gone. If an implementation throws an exception of another type, it
// becomes kSystem.
//
// This header needs no LibTorch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {

class HostedStore;

class Store {
 public:
  virtual ~Store() = default;

  // Stores or overwrites. Keys and values are bytes.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Returns the value. Waits until the key exists.
  virtual std::string get(const std::string& key, std::chrono::nanoseconds timeout) = 0;
  // Returns the values in the order of the keys. Waits for all of them; `timeout` covers all.
  // The default calls get() for each key in turn.
  virtual std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                             std::chrono::nanoseconds timeout);
  // Returns whether every key exists now.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  // Adds to a decimal counter (a missing one is 0) and returns the sum. If several ranks add to
  // a key, each gets a different sum.
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;
  // Returns true if the key existed.
  virtual bool delete_key(const std::string& key) = 0;

  // Returns a numeric address at which other hosts reach this one, if the store knows one; else
  // an empty string.
  virtual std::string local_address() const { return {}; }
};

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // name or numeric address
  std::uint16_t port = 29500;
  // "a" makes key "k" the key "/a/k" of the server, as PyTorch's PrefixStore does.
  std::string prefix = {};
  // Timeout for connecting, with retries: the server may start later.
  std::chrono::nanoseconds connect_timeout = std::chrono::minutes(5);
  // Timeout for the answer to a request that waits for no key.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
};

// Connects to a store that speaks PyTorch's TCPStore protocol: a TcpStoreServer, ddp-store, the
// store of ddprun or torchrun, a torch.distributed.TCPStore. One thread at a time.
std::shared_ptr<Store> connect_tcp_store(const TcpStoreOptions& options);

struct TcpStoreServerOptions {
  // The listen address: a numeric address of this host, or "*" for all of them. Every process
  // that reaches it can read and write every key.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free one
};

// TcpStoreServer: serves a store in this process, on its own thread, as long as it lives.
// PyTorch's clients can use it, too. One thread owns it. Several processes and threads may use
// it through connect_tcp_store().
class TcpStoreServer {
 public:
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  ~TcpStoreServer();  // closes every connection
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  const std::string& host() const;  // numeric
  std::uint16_t port() const;

 private:
  std::unique_ptr<HostedStore> hosted_;
};

}  // namespace ddprun
