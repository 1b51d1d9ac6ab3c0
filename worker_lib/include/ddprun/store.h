// Store: the keys and values through which ranks find each other. init() makes one; a program can
// hand in its own (InitOptions::store), made of whatever all its ranks can reach.
//
// The library meets in it when a group is formed: each rank sets a short text and reads those of
// the others. Nothing of the training passes through it.
//
// Thread rule: the library uses a Store from one thread at a time; ranks that are threads of one
// process and share one Store call it from many. A connection of connect_tcp_store() is for one
// thread at a time: a get() that waits holds it.
//
// Failures throw DistError: kTimeout where a key did not come in time, after which the store is as
// usable as before; kConnection where the store is gone. Exceptions of other types that an
// implementation throws become kSystem.
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

class Store {
 public:
  virtual ~Store() = default;

  // Stores or overwrites. Keys and values are bytes.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // The value; waits for the key to exist.
  virtual std::string get(const std::string& key, std::chrono::nanoseconds timeout) = 0;
  // The values in the order of the keys; waits for all of them, `timeout` in all. As it is here:
  // one get() after the other.
  virtual std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                             std::chrono::nanoseconds timeout);
  // Whether every key exists now.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  // Adds to a decimal counter (missing: 0) and returns the sum. Of several ranks that add to a key
  // each gets another sum.
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;
  // True if the key existed.
  virtual bool delete_key(const std::string& key) = 0;

  // A numeric address at which other hosts reach this one, where the store knows one; else empty.
  virtual std::string local_address() const { return {}; }
};

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // name or numeric address
  std::uint16_t port = 29500;
  std::string prefix =
      {};  // "a" makes key "k" the key "/a/k" of the server, as PyTorch's PrefixStore does
  // Of connecting, with retries: the server may come later.
  std::chrono::nanoseconds connect_timeout = std::chrono::minutes(5);
  // Of the answer to a request that waits for no key.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
};

// A connection to a store that speaks PyTorch's TCPStore protocol: a TcpStoreServer, ddp-store, the
// store of ddprun or torchrun, a torch.distributed.TCPStore. One thread at a time.
std::shared_ptr<Store> connect_tcp_store(const TcpStoreOptions& options);

struct TcpStoreServerOptions {
  // What it listens on: a numeric address of this host, or "*" for all of them. Whoever reaches it
  // can read and write every key.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free one
};

// Serves a store in this process, on a thread of its own, as long as it lives. PyTorch's clients
// can use it, too. One owner thread; it may be used from several processes and threads through
// connect_tcp_store().
class TcpStoreServer {
 public:
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  ~TcpStoreServer();  // closes every connection
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  const std::string& host() const;  // numeric
  std::uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
