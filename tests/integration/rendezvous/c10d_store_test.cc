// Tests PyTorch's own C++ client, c10d::TCPStore, against ddp-store, and makes the same calls
// against PyTorch's own servers. The transcripts must be equal. store_stories.py lists the
// known differences; no story here meets one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <functional>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/read_file.h"
#include "tests/support/running_ddp_store.h"

namespace ddprun {
namespace {

using namespace std::literals;
using testing_support::RunningDdpStore;
using Bytes = std::vector<std::uint8_t>;
using Lines = std::vector<std::string>;

constexpr std::chrono::milliseconds kWait = 20s;
constexpr std::chrono::milliseconds kShort = 60ms;

Bytes bytes(std::string_view text) { return {text.begin(), text.end()}; }

// --- results as text ---

std::string words(const std::string& text) {
  if (text.size() <= 60) return "'" + text + "'";
  return std::to_string(text.size()) + " bytes of hash " +
         std::to_string(std::hash<std::string>()(text));
}
std::string words(const Bytes& value) { return words(std::string(value.begin(), value.end())); }
std::string words(bool value) { return value ? "true" : "false"; }
std::string words(std::int64_t value) { return std::to_string(value); }
std::string words(std::chrono::milliseconds value) { return words(value.count()) + " ms"; }
std::string words(const c10::intrusive_ptr<c10d::Store>& store) {
  return store ? "a store" : "none";
}
template <class T>
std::string words(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += words(value) + " ";
  return "[" + text + "]";
}

std::string words(const c10::Error& error) {
  std::string kind = "c10::Error";
  if (dynamic_cast<const c10::DistQueueEmptyError*>(&error))
    kind = "DistQueueEmptyError";
  else if (dynamic_cast<const c10::DistStoreError*>(&error))
    kind = "DistStoreError";
  else if (dynamic_cast<const c10::DistNetworkError*>(&error))
    return "DistNetworkError";
  else if (dynamic_cast<const c10::NotImplementedError*>(&error))
    kind = "NotImplementedError";
  const std::string text = error.msg();
  return kind + ": " + text.substr(0, text.find('\n'));
}

// --- transcripts ---

// Returns the names of all calls made by any client, so that a test can find calls that are
// missing.
std::set<std::string>& called() {
  static std::set<std::string> called;
  return called;
}

// One client: records its calls and their results. Store: the class through which it is
// called.
template <class Store>
struct Told {
  // what: the text of the call in the source.
  template <class Call>
  void tell(const std::string& what, Call call) {
    called().insert(what.substr(0, what.find('(')));
    lines.push_back(what + " -> " + answer(call));
  }

  template <class Call>
  std::string answer(Call call) {
    try {
      if constexpr (std::is_void_v<decltype(call(store))>) {
        call(store);
        return "done";
      } else {
        return words(call(store));
      }
    } catch (const c10::Error& error) {
      return "throws " + words(error);
    }
  }

  Store& store;
  Lines& lines;
};

#define DDPRUN_TELL(told, call) (told).tell(#call, [&](auto& asked) { return asked.call; })

c10d::TCPStoreOptions client_of(std::uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = kWait;
  return options;
}

c10::intrusive_ptr<c10d::TCPStore> connect(const c10d::TCPStoreOptions& options) {
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// --- stories ---

void values(std::uint16_t port, Lines& lines) {
  const auto client = connect(client_of(port));
  Told<c10d::Store> store{*client, lines};
  DDPRUN_TELL(store, getNumKeys());
  DDPRUN_TELL(store, set("k", "one"));
  DDPRUN_TELL(store, set("k", bytes("two")));
  DDPRUN_TELL(store, get("k"));
  DDPRUN_TELL(store, get_to_str("k"));
  DDPRUN_TELL(store, set("empty", Bytes()));
  DDPRUN_TELL(store, get("empty"));
  DDPRUN_TELL(store, set("", "of the empty key"));
  DDPRUN_TELL(store, get(""));
  DDPRUN_TELL(store, set("odd\0key\xff"s, bytes("\0\x80\xff"sv)));
  DDPRUN_TELL(store, get("odd\0key\xff"s));
  DDPRUN_TELL(store, check({"odd"}));
  DDPRUN_TELL(store, set("large", std::string(8 << 20, 'v')));
  DDPRUN_TELL(store, get("large"));
  DDPRUN_TELL(store, set(std::string(8191, 'k'), "of the longest key"));
  DDPRUN_TELL(store, get(std::string(8191, 'k')));
  DDPRUN_TELL(store, compareSet("c", "", "one"));
  DDPRUN_TELL(store, compareSet("c", bytes("one"), bytes("two")));
  DDPRUN_TELL(store, compareSet("c", "one", "three"));
  DDPRUN_TELL(store, compareSet("missing", "one", "two"));
  DDPRUN_TELL(store, get("c"));
  DDPRUN_TELL(store, append("c", bytes(" and more")));
  DDPRUN_TELL(store, append("a", Bytes()));
  DDPRUN_TELL(store, get("c"));
  DDPRUN_TELL(store, check({"a", "c"}));
  DDPRUN_TELL(store, deleteKey("c"));
  DDPRUN_TELL(store, deleteKey("c"));
  DDPRUN_TELL(store, check({"a", "c"}));
  DDPRUN_TELL(store, check({}));
  DDPRUN_TELL(store, getNumKeys());
  DDPRUN_TELL(store, watchKey("k", nullptr));
}

void counters(std::uint16_t port, Lines& lines) {
  const auto client = connect(client_of(port));
  Told<c10d::Store> store{*client, lines};
  DDPRUN_TELL(store, add("n", 5));
  DDPRUN_TELL(store, add("n", -8));
  DDPRUN_TELL(store, get("n"));
  DDPRUN_TELL(store, add("zero", 0));
  DDPRUN_TELL(store, get("zero"));
  DDPRUN_TELL(store, add("most", std::numeric_limits<std::int64_t>::max()));
  DDPRUN_TELL(store, add("most", 1));
  DDPRUN_TELL(store, get("most"));
  for (const std::string text : {"12abc", " 7 ", "+3", "-4x", "0x10"}) {
    DDPRUN_TELL(store, set("text", text));
    DDPRUN_TELL(store, add("text", 1));
    DDPRUN_TELL(store, get("text"));
  }
  for (const std::string text : {"abc", "", "-"}) {  // each ends the client that adds to it
    const auto other = connect(client_of(port));
    Told<c10d::Store> bad{*other, lines};
    DDPRUN_TELL(bad, set("text", text));
    DDPRUN_TELL(bad, add("text", 1));
    DDPRUN_TELL(store, get("text"));
  }
}

void lists(std::uint16_t port, Lines& lines) {
  const auto client = connect(client_of(port));
  Told<c10d::Store> store{*client, lines};
  DDPRUN_TELL(store, hasExtendedApi());
  DDPRUN_TELL(store, multiSet({"m1", "m2", "m1"}, {bytes("1"), Bytes(), bytes("3")}));
  DDPRUN_TELL(store, multiGet({"m2", "m1", "m1"}));
  DDPRUN_TELL(store, multiSet({}, {}));
  DDPRUN_TELL(store, multiGet({}));
  DDPRUN_TELL(store, multiSet({"m1", "m2"}, {bytes("of one")}));
  DDPRUN_TELL(store, multiGet({"m1", "m2"}));
  std::vector<std::string> keys;
  std::vector<Bytes> many;
  for (int i = 0; i < 3000; ++i) {
    keys.push_back("key " + std::to_string(i));
    many.push_back(bytes("value " + std::to_string(i)));
  }
  DDPRUN_TELL(store, multiSet(keys, many));
  DDPRUN_TELL(store, wait(keys));
  DDPRUN_TELL(store, check(keys));
  DDPRUN_TELL(store, multiGet(keys));
  DDPRUN_TELL(store, listKeys().size() == 3002);
  DDPRUN_TELL(store, getNumKeys());
}

void waits(std::uint16_t port, Lines& lines) {
  const auto client = connect(client_of(port)), other = connect(client_of(port));
  Told<c10d::Store> store{*client, lines};
  DDPRUN_TELL(store, getTimeout());
  DDPRUN_TELL(store, set("k", "v"));
  DDPRUN_TELL(store, wait({"k", "k"}));
  DDPRUN_TELL(store, wait({}));
  DDPRUN_TELL(store, wait({}, kWait));
  DDPRUN_TELL(store, wait({"k"}, kWait));
  for (int i = 0; i < 3; ++i) {
    DDPRUN_TELL(store, wait({"k", "missing"}, kShort));
    DDPRUN_TELL(store, add("n", 1));
  }
  DDPRUN_TELL(store, setTimeout(kShort));
  DDPRUN_TELL(store, getTimeout());
  DDPRUN_TELL(store, wait({"missing", "other"}));
  DDPRUN_TELL(store, get("missing"));
  DDPRUN_TELL(store, multiGet({"k", "missing"}));
  DDPRUN_TELL(store, setTimeout(kWait));
  DDPRUN_TELL(store, get("k"));
  // The key is set during the wait, or just before it.
  for (const std::string key : {"later", "and later"}) {
    std::thread setter([&] { other->set(key, bytes("v")); });
    DDPRUN_TELL(store, wait({"k", key}));
    setter.join();
  }
}

void queues(std::uint16_t port, Lines& lines) {
  const auto client = connect(client_of(port));
  Told<c10d::Store> store{*client, lines};
  DDPRUN_TELL(store, queueLen("q"));
  DDPRUN_TELL(store, queuePop("q", false));
  DDPRUN_TELL(store, queuePush("q", bytes("one")));
  DDPRUN_TELL(store, queuePush("q", Bytes()));
  DDPRUN_TELL(store, queueLen("q"));
  DDPRUN_TELL(store, check({"q"}));
  DDPRUN_TELL(store, getNumKeys());
  DDPRUN_TELL(store, deleteKey("q"));
  DDPRUN_TELL(store, queuePop("q", true));
  DDPRUN_TELL(store, queuePop("q", false));
  DDPRUN_TELL(store, queuePop("q", false));
  DDPRUN_TELL(store, setTimeout(kShort));
  DDPRUN_TELL(store, queuePop("q", true));
  DDPRUN_TELL(store, setTimeout(kWait));
  DDPRUN_TELL(store, queuePush("q", bytes("two")));
  DDPRUN_TELL(store, queuePop("q", true));
}

void prefixes(std::uint16_t port, Lines& lines) {
  const auto client = connect(client_of(port));
  const auto outer = c10::make_intrusive<c10d::PrefixStore>("outer/", client);
  const auto inner = c10::make_intrusive<c10d::PrefixStore>("", outer);
  Told<c10d::Store> base{*client, lines}, store{*inner, lines};
  Told<c10d::PrefixStore> prefixed{*inner, lines};
  DDPRUN_TELL(prefixed, getUnderlyingStore() == outer);
  DDPRUN_TELL(prefixed, getUnderlyingNonPrefixStore() == client);
  DDPRUN_TELL(store, set("k", "v"));
  DDPRUN_TELL(store, get("k"));
  DDPRUN_TELL(store, add("n", 3));
  DDPRUN_TELL(store, multiSet({"a", "b"}, {bytes("1"), bytes("2")}));
  DDPRUN_TELL(store, multiGet({"b", "a"}));
  DDPRUN_TELL(store, check({"k", "b"}));
  DDPRUN_TELL(store, compareSet("c", "", "v"));
  DDPRUN_TELL(store, append("k", bytes("w")));
  DDPRUN_TELL(store, wait({"k"}));
  DDPRUN_TELL(store, wait({"missing"}, kShort));
  DDPRUN_TELL(store, hasExtendedApi());
  DDPRUN_TELL(store, deleteKey("b"));
  DDPRUN_TELL(store, getNumKeys());
  DDPRUN_TELL(base, get("outer///k"));
  const auto clone = inner->clone();
  Told<c10d::Store> other{*clone, lines};
  DDPRUN_TELL(other, get("k"));
  DDPRUN_TELL(store, setTimeout(kShort));
  DDPRUN_TELL(base, getTimeout());
}

void clones(std::uint16_t port, Lines& lines) {
  const auto client = connect(client_of(port));
  Told<c10d::Store> store{*client, lines};
  DDPRUN_TELL(store, clone());
  const auto clone = client->clone();
  Told<c10d::Store> other{*clone, lines};
  DDPRUN_TELL(store, set("k", "v"));
  DDPRUN_TELL(other, get("k"));
  DDPRUN_TELL(other, getNumKeys());
  DDPRUN_TELL(other, wait({"missing"}, kShort));
  DDPRUN_TELL(store, get("k"));
}

// The methods that c10d::TCPStore adds to c10d::Store.
void own_methods(std::uint16_t port, Lines& lines) {
  c10d::TCPStoreOptions options = client_of(port);
  options.numWorkers = 1;
  const auto client = connect(options);
  Told<c10d::TCPStore> store{*client, lines};
  DDPRUN_TELL(store, waitForWorkers());
  DDPRUN_TELL(store, getNumKeys());
  DDPRUN_TELL(store, getHost());
  DDPRUN_TELL(store, getPort() == port);
  DDPRUN_TELL(store, isLibUvBackend());
  DDPRUN_TELL(store, repr().substr(0, 9));
  DDPRUN_TELL(store, _splitSet("k", bytes("sent in two parts, a second apart")));
  DDPRUN_TELL(store, get("k"));
}

// --- the tests ---

// Runs a story against ddp-store and against PyTorch's server, and expects equal transcripts.
void expect_equal(void (*story)(std::uint16_t, Lines&), bool use_libuv) {
  c10d::TCPStoreOptions options = client_of(0);
  options.isServer = true;
  options.useLibUV = use_libuv;
  const auto server = connect(options);
  const RunningDdpStore store;
  Lines theirs, ours;
  story(server->getPort(), theirs);
  story(store.port, ours);
  EXPECT_GT(ours.size(), 5u);
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(ours[i], theirs[i]);
}

const std::vector<void (*)(std::uint16_t, Lines&)> kStoriesOfAll{
    values, counters, lists, waits, prefixes, clones, own_methods};

TEST(C10dStore, TheClientGetsWhatPyTorchsServerAnswers) {
  for (const auto story : kStoriesOfAll) expect_equal(story, true);
  expect_equal(queues, true);
}

// The older server has no queues.
TEST(C10dStore, TheClientGetsWhatPyTorchsOlderServerAnswers) {
  for (const auto story : kStoriesOfAll) expect_equal(story, false);
}

// Returns the names of the public functions of a class in the header.
std::set<std::string> public_functions(const std::string& header, const std::string& name) {
  std::string text = testing_support::read_file(C10D_INCLUDE_DIR "/" + header);
  text = std::regex_replace(text, std::regex("//[^\n]*|/\\*[^*]*\\*/"), "");
  text.erase(0, text.find("class TORCH_API " + name + " "));
  text.erase(std::min(text.find(" private:"), text.find(" protected:")));
  std::set<std::string> names;
  // The name must stand at the beginning of a declaration, not in a function's body.
  const std::regex declaration(R"(\n  [^\s(][^({;=]*?\b(\w+)\()");
  for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end;
       ++found) {
    names.insert((*found)[1]);
  }
  names.erase(name);  // the constructor
  return names;
}

TEST(C10dStore, TheStoriesCallEverythingThatIsPublic) {
  const RunningDdpStore store;
  called().clear();
  Lines lines;
  for (const auto story : kStoriesOfAll) story(store.port, lines);
  queues(store.port, lines);
  for (const std::string name : {"Store", "TCPStore", "PrefixStore"}) {
    const std::set<std::string> functions = public_functions(name + ".hpp", name);
    EXPECT_THAT(functions, testing::IsSupersetOf({"get", "queuePop"}));
    for (const std::string& function : functions) {
      EXPECT_TRUE(called().contains(function)) << name << "::" << function;
    }
  }
}

}  // namespace
}  // namespace ddprun
