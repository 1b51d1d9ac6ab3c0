#include "launcher/machine/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/usable_cpus.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Skips the test if this host or this build has no hwloc.
#define SKIP_WITHOUT_HWLOC(found)                                \
  if (!found && found.error().kind == ErrorKind::kUnsupported) { \
    GTEST_SKIP() << "no hwloc: " << found.error().message();     \
  }                                                              \
  ASSERT_TRUE(found)

// HwlocVariable: sets an environment variable of hwloc for the length of a test.
class HwlocVariable {
 public:
  HwlocVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~HwlocVariable() { unsetenv(name_); }
  HwlocVariable(const HwlocVariable&) = delete;
  HwlocVariable& operator=(const HwlocVariable&) = delete;

 private:
  const char* name_;
};

const std::string kTwoGpus = DDPRUN_SOURCE_DIR "/tests/data/two-sockets-two-gpus.xml";

TEST(Topology, OfThisMachineHasTheCpusThatAreUsable) {
  const Result<FoundMachine> found = find_machine({});
  SKIP_WITHOUT_HWLOC(found);
  EXPECT_TRUE(found->is_this_one);
  const std::vector<int> usable = usable_cpus();
  EXPECT_EQ(found->machine.usable, CpuSet(usable.begin(), usable.end()));
  CpuSet all;
  for (const ProcessorCore& core : found->machine.cores) {
    EXPECT_FALSE(core.cpus.empty());
    all.insert(core.cpus.begin(), core.cpus.end());
  }
  EXPECT_EQ(common(all, found->machine.usable), found->machine.usable);
}

TEST(Topology, KnowsPackagesNodesCachesAndThreads) {
  const HwlocVariable machine("HWLOC_SYNTHETIC", "pack:2 [numa] [numa] l3:2 core:3 pu:2");
  const Result<FoundMachine> found = find_machine({});
  SKIP_WITHOUT_HWLOC(found);
  EXPECT_FALSE(found->is_this_one);
  ASSERT_EQ(found->machine.cores.size(), 12u);
  EXPECT_EQ(found->machine.usable.size(), 24u) << "of another machine all counts";
  const ProcessorCore& first = found->machine.cores.front();
  const ProcessorCore& last = found->machine.cores.back();
  EXPECT_EQ(first.cpus, (CpuSet{0, 1}));
  EXPECT_EQ(last.cpus, (CpuSet{22, 23}));
  EXPECT_EQ(last.package, 1);
  EXPECT_EQ(first.numa_node, 0);
  EXPECT_EQ(last.numa_node, 2) << "the first of the two that are there";
  EXPECT_EQ(last.cache, 3);
}

TEST(Topology, AGpuIsNextToTheCpusOfItsPackage) {
  const HwlocVariable machine("HWLOC_XMLFILE", kTwoGpus);
  const Result<FoundMachine> found =
      find_machine({.gpus = {{"0", "0000:1b:00.0"}, {"1", "0000:9d:00.0"}, {"2", "0000:aa:00.0"}}});
  SKIP_WITHOUT_HWLOC(found);
  ASSERT_EQ(found->machine.gpus.size(), 3u);
  EXPECT_EQ(to_text(found->machine.gpus[0].near), "4-7");
  EXPECT_EQ(to_text(found->machine.gpus[1].near), "0-3");
  EXPECT_EQ(found->machine.gpus[2].near, CpuSet{}) << "hwloc does not know it";
  EXPECT_EQ(found->machine.gpus[1].name, "1");
}

TEST(Topology, WithoutHwlocALineSaysWhatToInstall) {
  const Result<FoundMachine> found =
      find_machine({.gpus = {}, .library = "libhwloc-is-not-here.so.15"});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(found.error().message(), HasSubstr("install libhwloc"));
}

TEST(Topology, ALibraryThatIsNoHwlocIsNotUsed) {
  const Result<FoundMachine> found = find_machine({.gpus = {}, .library = "libc.so.6"});
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message(), HasSubstr("install libhwloc"));
}

}  // namespace
}  // namespace ddprun
