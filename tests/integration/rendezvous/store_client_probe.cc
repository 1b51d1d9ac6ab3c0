// Calls every operation of StoreClient and prints the results. pytorch_store_test.py compares
// the answers of our server and PyTorch's.
//
//   store_client_probe HOST:PORT [list_keys]
//
// list_keys: an operation that not all servers have.
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/net/tcp_address.h"
#include "rendezvous/store/client.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

void print(const std::string& value) { std::cout << "'" << value << "'"; }
void print(std::int64_t value) { std::cout << value; }
void print(bool value) { std::cout << (value ? "true" : "false"); }
void print(const std::vector<std::string>& values) {
  for (const std::string& value : std::set<std::string>(values.begin(), values.end())) print(value);
}

template <class T>
void show(const char* what, const Result<T>& result) {
  std::cout << what << ": ";
  if (!result) {
    std::cout << "error of kind " << to_text(result.error().kind);
  } else if constexpr (std::is_void_v<T>) {
    std::cout << "done";
  } else {
    print(*result);
  }
  std::cout << "\n";
}

void all_servers(StoreClient& client) {
  show("num_keys of an empty store", client.num_keys());
  show("set", client.set("k", "one"));
  show("set again", client.set("k", "two"));
  show("get", client.get("k", 10s));
  show("set empty", client.set("empty", ""));
  show("get empty", client.get("empty", 10s));
  show("large", client.set("large", std::string(8 << 20, 'v')));
  const Result<std::string> large = client.get("large", 10s);
  show("length of large", Result<std::int64_t>(large ? std::int64_t(large->size()) : -1));
  show("add", client.add("n", 5));
  show("add less", client.add("n", -7));
  show("add nothing", client.add("zero", 0));
  show("check", client.check({"k", "n"}));
  show("check missing", client.check({"k", "missing"}));
  show("get missing", client.get("missing", 20ms));
  show("get after a wait that timed out", client.get("k", 10s));
  show("multi_get", client.multi_get({"n", "empty", "k"}, 10s));
  show("multi_get missing", client.multi_get({"k", "missing"}, 20ms));
  PendingGet first = client.get_async("k", 10s), missing = client.get_async("missing", 20ms);
  PendingGet empty = client.get_async("empty", 10s);
  show("pipelined get of an empty value", std::move(empty).take());
  show("add between", client.add("n", 0));
  show("pipelined get", std::move(first).take());
  show("pipelined get of a missing key", std::move(missing).take());
  show("delete", client.delete_key("k"));
  show("delete again", client.delete_key("k"));
  show("num_keys", client.num_keys());
}

int run(int argc, char** argv) {
  const Result<HostPort> address = parse_host_port(argv[1]);
  auto client = StoreClient::connect(
      {.address = *address, .prefix = "probe", .connect_timeout = 10s, .timeout = 10s});
  if (!client) {
    std::cout << client.error().message() << "\n";
    return 1;
  }
  const std::set<std::string> known(argv + 2, argv + argc);
  all_servers(**client);
  if (known.contains("list_keys")) show("list_keys", (*client)->list_keys());
  return 0;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) { return argc < 2 ? 2 : ddprun::run(argc, argv); }
