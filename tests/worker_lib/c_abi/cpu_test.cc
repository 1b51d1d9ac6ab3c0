// Loads libddprun_cpu.so as the Python package does. The ranks are threads.
#include "worker_lib/c_abi/cpu.h"

#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/flight_words.h"
#include "base/worker_page.h"
#include "base/worker_page_file.h"
#include "ddprun/reduce_op.h"
#include "tests/support/eventually.h"
#include "worker_lib/collective/element_type.h"

namespace {

using ddprun::ElementType;
using ddprun::ReduceOp;
using ddprun::testing_support::eventually;
using ddprun::testing_support::let_pass;
using testing::HasSubstr;

constexpr std::int64_t kPatience = 30'000'000'000;
constexpr int kF32 = static_cast<int>(ElementType::kF32);
constexpr int kC64 = static_cast<int>(ElementType::kC64);
constexpr int kSum = static_cast<int>(ReduceOp::kSum);
constexpr int kProduct = static_cast<int>(ReduceOp::kProduct);

void* library() {
  static void* const handle = dlopen(DDPRUN_CPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return handle;
}

// A function of the library: DDPRUN_CPU(barrier)(group, ...).
#define DDPRUN_CPU(name) \
  reinterpret_cast<decltype(&ddprun_cpu_##name)>(dlsym(library(), "ddprun_cpu_" #name))

std::string last_error() { return DDPRUN_CPU(last_error)(); }

// The ranks' store. The library gives its functions no context.
struct Store {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
};
Store store;

int use_store(int operation, const char* key, const void* value, std::size_t bytes,
              std::int64_t timeout_ns, void* answer) {
  std::unique_lock lock(store.mutex);
  std::string text;
  if (operation == DDPRUN_CPU_STORE_SET) {
    store.values[key] = std::string(static_cast<const char*>(value), bytes);
    store.changed.notify_all();
  } else if (operation == DDPRUN_CPU_STORE_CHECK) {
    text = store.values.contains(key) ? "1" : "0";
  } else if (store.changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                    [&] { return store.values.contains(key); })) {
    text = store.values[key];
  } else {
    return DDPRUN_CPU_TIMEOUT;
  }
  DDPRUN_CPU(answer)(answer, text.data(), text.size());
  return DDPRUN_CPU_OK;
}

int refuse(int, const char*, const void*, std::size_t, std::int64_t, void* answer) {
  DDPRUN_CPU(answer)(answer, "the store is gone", 17);
  return DDPRUN_CPU_CONNECTION;
}

// Runs body(group, rank) in a group of `size` threads, which free the group in the end.
void in_group(int size, const std::function<void(ddprun_cpu_group*, int)>& body) {
  static int groups = 0;
  const std::string name = "group" + std::to_string(groups++);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      ddprun_cpu_group* const group =
          DDPRUN_CPU(form)(use_store, rank, size, name.c_str(), "", "127.0.0.1", kPatience);
      EXPECT_NE(group, nullptr) << last_error();
      if (group) body(group, rank);
      if (group) DDPRUN_CPU(close)(group, kPatience);
      DDPRUN_CPU(free)(group);
    });
  }
  for (std::thread& one : ranks) one.join();
}

ddprun_cpu_buffer buffer_of(std::vector<float>& values) {
  return {values.data(), values.size() * sizeof(float)};
}

TEST(CpuAbi, LoadsWithItsVersion) {
  ASSERT_NE(library(), nullptr) << dlerror();
  EXPECT_EQ(DDPRUN_CPU(abi_version)(), DDPRUN_CPU_ABI_VERSION);
}

// Returns the names that the library's dynamic symbol table defines.
std::set<std::string> exported_names() {
  std::ifstream file(DDPRUN_CPU_LIBRARY, std::ios::binary);
  const std::string image((std::istreambuf_iterator<char>(file)), {});
  const auto at = [&]<class T>(std::size_t offset, T value) {
    std::memcpy(&value, image.data() + offset, sizeof value);
    return value;
  };
  const auto header = at(0, Elf64_Ehdr());
  const auto section = [&](std::size_t i) {
    return at(header.e_shoff + i * header.e_shentsize, Elf64_Shdr());
  };
  std::set<std::string> names;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr table = section(i);
    if (table.sh_type != SHT_DYNSYM) continue;
    const Elf64_Shdr texts = section(table.sh_link);
    for (std::size_t offset = 0; offset < table.sh_size; offset += table.sh_entsize) {
      const auto symbol = at(table.sh_offset + offset, Elf64_Sym());
      // For aarch64, GNU ld also lists the sections here.
      if (ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
      if (symbol.st_shndx != SHN_UNDEF && symbol.st_shndx != SHN_ABS) {
        names.insert(image.c_str() + texts.sh_offset + symbol.st_name);
      }
    }
  }
  return names;
}

TEST(CpuAbi, ExportsTheFunctionsOfItsHeaderOnly) {
  std::ifstream file(DDPRUN_CPU_HEADER);
  const std::string header((std::istreambuf_iterator<char>(file)), {});
  std::set<std::string> declared;
  const std::regex function(R"(\n[a-z][a-z_0-9 *]*[ *](ddprun_cpu_[a-z_]+)\()");
  for (auto found = std::sregex_iterator(header.begin(), header.end(), function);
       found != std::sregex_iterator(); ++found) {
    declared.insert((*found)[1]);
  }
  EXPECT_GE(declared.size(), 20);
  EXPECT_EQ(exported_names(), declared);
}

// Runs body(group) on rank 0, while that rank makes two barriers, one in another thread. Rank 1
// comes to no barrier, and lives until the body has run.
void during_a_barrier(const std::function<void(ddprun_cpu_group*)>& body, int expected) {
  std::promise<void> is_done;
  in_group(2, [&](ddprun_cpu_group* group, int rank) {
    if (rank == 1) return is_done.get_future().wait();
    std::thread waiter([&] {
      EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), expected) << last_error();
    });
    ddprun_cpu_call* probe = nullptr;
    EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, &probe), DDPRUN_CPU_OK);
    body(group);
    EXPECT_EQ(DDPRUN_CPU(call_wait)(probe, kPatience), expected);
    DDPRUN_CPU(call_free)(probe);
    waiter.join();
    is_done.set_value();
  });
}

TEST(CpuAbi, ClosesWhileAnotherThreadIsInACall) {
  during_a_barrier(
      [](ddprun_cpu_group* group) {
        EXPECT_EQ(DDPRUN_CPU(close)(group, 0), DDPRUN_CPU_OK);
        EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), DDPRUN_CPU_STOPPED);
        EXPECT_THAT(last_error(), HasSubstr("the process group was destroyed"));
        EXPECT_EQ(DDPRUN_CPU(abort)(group, "late"), DDPRUN_CPU_STOPPED);
      },
      DDPRUN_CPU_STOPPED);
}

// Before, an asynchronous call waited for the end of a blocking one, and for room in the queue.
TEST(CpuAbi, IssuesWithoutWaiting) {
  during_a_barrier(
      [](ddprun_cpu_group* group) {
        for (int i = 0; i < 3000; ++i) {
          ddprun_cpu_call* call = nullptr;
          EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, &call), DDPRUN_CPU_OK);
          EXPECT_EQ(DDPRUN_CPU(call_wait)(call, 0), DDPRUN_CPU_PENDING);
          DDPRUN_CPU(call_free)(call);
        }
        DDPRUN_CPU(abort)(group, "the test wants it");
      },
      DDPRUN_CPU_STOPPED);
}

TEST(CpuAbi, ReducesOnTheCallingThreadAndInTheBackgroundInOrder) {
  in_group(3, [](ddprun_cpu_group* group, int rank) {
    std::vector<float> values(1000, static_cast<float>(rank + 1));
    const ddprun_cpu_buffer buffer = buffer_of(values);
    ddprun_cpu_call* first = nullptr;
    ddprun_cpu_call* second = nullptr;
    const auto all_reduce = [&](ddprun_cpu_call** call) {
      return DDPRUN_CPU(all_reduce)(group, &buffer, 1, kF32, kSum, kPatience, call);
    };
    EXPECT_EQ(all_reduce(nullptr), DDPRUN_CPU_OK);  // 6
    EXPECT_EQ(all_reduce(&first), DDPRUN_CPU_OK);   // 18
    EXPECT_EQ(all_reduce(&second), DDPRUN_CPU_OK);  // 54
    EXPECT_EQ(all_reduce(nullptr), DDPRUN_CPU_OK);  // 162
    EXPECT_EQ(values, std::vector<float>(1000, 162));
    for (ddprun_cpu_call* call : {first, second}) {
      EXPECT_EQ(DDPRUN_CPU(call_wait)(call, 0), DDPRUN_CPU_OK);
      EXPECT_EQ(DDPRUN_CPU(call_source)(call), -1);
      DDPRUN_CPU(call_free)(call);
    }
  });
}

TEST(CpuAbi, CarriesMessagesFromAnyRank) {
  in_group(2, [](ddprun_cpu_group* group, int rank) {
    std::vector<float> values(4, static_cast<float>(rank));
    const ddprun_cpu_buffer buffer = buffer_of(values);
    if (rank == 1) {
      EXPECT_EQ(DDPRUN_CPU(send)(group, &buffer, 0, 7, kPatience, nullptr), DDPRUN_CPU_OK);
      return;
    }
    ddprun_cpu_call* call = nullptr;
    EXPECT_EQ(DDPRUN_CPU(recv)(group, &buffer, -1, 7, kPatience, &call), DDPRUN_CPU_OK);
    EXPECT_EQ(DDPRUN_CPU(call_wait)(call, kPatience), DDPRUN_CPU_OK);
    EXPECT_EQ(DDPRUN_CPU(call_source)(call), 1);
    EXPECT_EQ(values[3], 1);
    DDPRUN_CPU(call_free)(call);
  });
}

// The buffer of a call must stay until the call has ended, so the sender keeps it past the close.
TEST(CpuAbi, AMessageInFlightArrivesThoughItsSenderCloses) {
  std::vector<float> sent(1 << 18, 7);
  std::atomic<bool> is_sent = false;
  in_group(2, [&](ddprun_cpu_group* group, int rank) {
    if (rank == 1) {
      const ddprun_cpu_buffer buffer = buffer_of(sent);
      ddprun_cpu_call* call = nullptr;
      EXPECT_EQ(DDPRUN_CPU(send)(group, &buffer, 0, 7, kPatience, &call), DDPRUN_CPU_OK);
      DDPRUN_CPU(call_free)(call);
      is_sent = true;
      return;
    }
    EXPECT_TRUE(eventually([&] { return is_sent.load(); }));
    let_pass(std::chrono::milliseconds(300));  // the receiver is late
    std::vector<float> values(sent.size());
    const ddprun_cpu_buffer buffer = buffer_of(values);
    EXPECT_EQ(DDPRUN_CPU(recv)(group, &buffer, 1, 7, kPatience, nullptr), DDPRUN_CPU_OK)
        << last_error();
    EXPECT_EQ(values, sent);
  });
}

TEST(CpuAbi, RefusesWrongArgumentsAndTheGroupGoesOn) {
  in_group(2, [](ddprun_cpu_group* group, int /*rank*/) {
    std::vector<float> values(4);
    const ddprun_cpu_buffer buffer = buffer_of(values);
    const ddprun_cpu_buffer odd{values.data(), 7};
    const ddprun_cpu_buffer unequal[2] = {buffer, odd};
    const auto is_refused = [](int status, const char* why) {
      EXPECT_EQ(status, DDPRUN_CPU_INVALID_ARGUMENT);
      EXPECT_THAT(last_error(), HasSubstr(why));
    };
    is_refused(DDPRUN_CPU(all_reduce)(group, &buffer, 1, kC64, kProduct, kPatience, nullptr),
               "all_reduce: elements of type c64 have no operation product");
    is_refused(DDPRUN_CPU(all_reduce)(group, &buffer, 1, 99, kSum, kPatience, nullptr),
               "unknown element type 99");
    is_refused(DDPRUN_CPU(all_reduce)(group, &odd, 1, kF32, kSum, kPatience, nullptr), "7 bytes");
    is_refused(DDPRUN_CPU(broadcast)(group, &buffer, 1, kF32, 2, kPatience, nullptr),
               "root: invalid value 2 (expected 0 to 1)");
    is_refused(DDPRUN_CPU(all_gather)(group, &buffer, 1, unequal, kF32, kPatience, nullptr),
               "buffers differ in size: 7 and 16 bytes");
    is_refused(DDPRUN_CPU(send)(group, &buffer, 2, 0, kPatience, nullptr),
               "rank: invalid value 2 (expected another rank, 0 to 1)");
    EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), DDPRUN_CPU_OK);
  });
}

TEST(CpuAbi, ReportsDifferentCallsOnEveryRankAndTheGroupHasEnded) {
  in_group(2, [](ddprun_cpu_group* group, int rank) {
    std::vector<float> values(4 + rank);
    const ddprun_cpu_buffer buffer = buffer_of(values);
    EXPECT_EQ(DDPRUN_CPU(all_reduce)(group, &buffer, 1, kF32, kSum, kPatience, nullptr),
              DDPRUN_CPU_INVALID_ARGUMENT);
    EXPECT_THAT(last_error(), HasSubstr("the ranks disagree"));
    EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), DDPRUN_CPU_STOPPED);
    EXPECT_THAT(last_error(), HasSubstr("the group has ended"));
  });
}

TEST(CpuAbi, EndsTheOthersCallsWhenARankAbortsOrLeaves) {
  in_group(2, [](ddprun_cpu_group* group, int rank) {
    if (rank == 1) {
      DDPRUN_CPU(abort)(group, "the test wants it");
      return;
    }
    EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), DDPRUN_CPU_STOPPED);
    EXPECT_THAT(last_error(), HasSubstr("the test wants it"));
  });
  in_group(2, [](ddprun_cpu_group* group, int rank) {
    if (rank == 1) return;
    EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), DDPRUN_CPU_PEER_LOST);
    EXPECT_THAT(last_error(), HasSubstr("rank 1"));
  });
}

// Returns the page that the library has made for itself, as this process has no agent.
std::optional<ddprun::MappedPages> page_of_library() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const std::string target = std::filesystem::read_symlink(entry.path(), closed);
    if (target.find(ddprun::kOwnPageName) == std::string::npos) continue;
    const int file = std::stoi(entry.path().filename());
    return ddprun::MappedPages::map({.file = file}, ddprun::MappedPages::Access::kRead);
  }
  return std::nullopt;
}

TEST(CpuAbi, EveryRecordOfACallEnds) {
  constexpr int kRanks[] = {0, 1};
  in_group(2, [&](ddprun_cpu_group* group, int rank) {
    EXPECT_EQ(DDPRUN_CPU(record)(group, 0, "", kRanks), DDPRUN_CPU_OK);
    std::vector<float> values(8);
    const ddprun_cpu_buffer buffer = buffer_of(values);
    ddprun_cpu_call* call = nullptr;
    for (int i = 0; i < 3; ++i) {
      DDPRUN_CPU(all_reduce)(group, &buffer, 1, kF32, kSum, kPatience, &call);
      EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), DDPRUN_CPU_OK);
      DDPRUN_CPU(call_wait)(call, kPatience);
      DDPRUN_CPU(call_free)(call);
      EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), DDPRUN_CPU_OK);
    }
    const auto message = rank == 0 ? DDPRUN_CPU(send) : DDPRUN_CPU(recv);
    EXPECT_EQ(message(group, &buffer, 1 - rank, 0, kPatience, nullptr), DDPRUN_CPU_OK);
    ddprun_cpu_call* late = nullptr;
    DDPRUN_CPU(recv)(group, &buffer, 1 - rank, 9, kPatience, &late);
    if (rank == 0) {
      DDPRUN_CPU(barrier)(group, kPatience, &call);
      EXPECT_EQ(DDPRUN_CPU(barrier)(group, kPatience, nullptr), DDPRUN_CPU_STOPPED);
      DDPRUN_CPU(call_free)(call);
    } else {
      DDPRUN_CPU(abort)(group, "the test wants it");
    }
    EXPECT_NE(DDPRUN_CPU(call_wait)(late, kPatience), DDPRUN_CPU_OK);
    DDPRUN_CPU(call_free)(late);
  });
  const std::optional<ddprun::MappedPages> pages = page_of_library();
  ASSERT_TRUE(pages);
  const ddprun::WorkerPage& page = (*pages)[0];
  EXPECT_EQ(page.calls, 2u * (3 * 3 + 2) + 2);
  int failed = 0;
  for (std::uint64_t number = 1; number <= page.calls; ++number) {
    const std::optional<ddprun::FlightEntry> entry = read_record(page, number);
    ASSERT_TRUE(entry) << number;
    EXPECT_NE(entry->ended_ns, 0u) << ddprun::words_of(*entry);
    failed += entry->failed;
  }
  EXPECT_EQ(failed, 4) << "two messages and two barriers";
}

TEST(CpuAbi, ReportsATimeoutAndTheStoresFailure) {
  EXPECT_EQ(DDPRUN_CPU(form)(use_store, 0, 2, "late", "", "127.0.0.1", 100'000'000), nullptr);
  EXPECT_THAT(last_error(), HasSubstr("rank 1 did not come"));
  EXPECT_EQ(DDPRUN_CPU(form)(refuse, 0, 2, "gone", "", "127.0.0.1", kPatience), nullptr);
  EXPECT_THAT(last_error(), HasSubstr("the store is gone"));
  EXPECT_EQ(DDPRUN_CPU(form)(use_store, 2, 2, "wrong", "", "127.0.0.1", kPatience), nullptr);
  EXPECT_THAT(last_error(), HasSubstr("ranks go from 0"));
}

}  // namespace
