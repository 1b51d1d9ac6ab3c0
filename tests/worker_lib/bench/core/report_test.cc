#include "worker_lib/bench/core/report.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

// Nodes that are all alike.
BenchReport alike(std::size_t nodes) {
  BenchReport report{.ranks = static_cast<int>(nodes),
                     .nodes = {},
                     .latency_s = {},
                     .link_gbs = {},
                     .all_reduces = {{1 << 10, 1e-4}, {64 << 20, 0.1}}};
  for (std::size_t from = 0; from < nodes; ++from) {
    report.nodes.push_back({"host" + std::to_string(from), 10});
    report.latency_s.emplace_back(nodes, 50e-6);
    report.link_gbs.emplace_back(nodes, 1.0);
    report.latency_s[from][from] = report.link_gbs[from][from] = 0;
  }
  return report;
}

void slow_links_of(BenchReport& report, std::size_t node, double gbs) {
  for (std::size_t other = 0; other < report.nodes.size(); ++other)
    if (other != node) report.link_gbs[node][other] = report.link_gbs[other][node] = gbs;
}

TEST(OddNodes, AreNoneWhereAllAreAlike) {
  for (const std::size_t nodes : {1, 2, 3, 64}) EXPECT_TRUE(odd_nodes(alike(nodes)).empty());
}

TEST(OddNodes, HaveSlowMemory) {
  BenchReport report = alike(2);
  report.nodes[1].memory_gbs = 4;
  EXPECT_EQ(odd_nodes(report),
            std::vector<std::string>{"node 1 (host1): its memory copies 4.00 GB/s, that of the "
                                     "others 10.0 GB/s"});
}

TEST(OddNodes, HaveSlowLinksAndTheirPartnersDoNot) {
  BenchReport report = alike(4);
  slow_links_of(report, 2, 0.1);
  EXPECT_EQ(odd_nodes(report),
            std::vector<std::string>{
                "node 2 (host2): its links carry 0.100 GB/s, those of the others 1.00 GB/s"});
}

TEST(OddNodes, HaveLateMessages) {
  BenchReport report = alike(3);
  for (const std::size_t other : {1, 2})
    report.latency_s[0][other] = report.latency_s[other][0] = 500e-6;
  const std::vector<std::string> odd = odd_nodes(report);
  ASSERT_EQ(odd.size(), 1U);
  EXPECT_TRUE(odd[0].starts_with("node 0 (host0): its messages take 500 us")) << odd[0];
}

TEST(OddNodes, HaveFewerOrSlowerGpusThanTheOthers) {
  BenchReport report = alike(3);
  for (BenchNode& node : report.nodes) node.gpu = {8, 2e12, 3e11, ""};
  EXPECT_TRUE(odd_nodes(report).empty());
  report.nodes[0].gpu.gpus = 7;
  report.nodes[1].gpu.bytes_per_s = 1e12;
  report.nodes[2].gpu.multiplies_per_s = 0.1e11;
  EXPECT_EQ(odd_nodes(report),
            (std::vector<std::string>{
                "node 0 (host0): it has 7 GPUs, the others 8",
                "node 1 (host1): its slowest GPU copies 1000 GB/s, that of the others 2000 GB/s",
                "node 2 (host2): its slowest GPU multiplies 10.0 G/s, that of the others 300 "
                "G/s"}));
}

// The speeds of a GPU that failed are 0. They are no speeds to compare with.
TEST(OddNodes, HaveAGpuThatIsNotFitAlsoIfThereIsOneNode) {
  BenchReport report = alike(1);
  report.nodes[0].gpu = {2, 0, 0, "gpu 1 (0000:9d:00.0): bad"};
  const std::vector<std::string> odd{"node 0 (host0): gpu 1 (0000:9d:00.0): bad"};
  EXPECT_EQ(odd_nodes(report), odd);
  report = alike(2);
  report.nodes[0].gpu = {2, 0, 0, "gpu 1 (0000:9d:00.0): bad"};
  report.nodes[1].gpu = {2, 2e12, 3e11, ""};
  EXPECT_EQ(odd_nodes(report), odd);
}

// Most nodes have none, so these are not odd. The slow one is compared with the other GPUs.
TEST(OddNodes, AreNotThoseWithoutGpusIfMostHaveNone) {
  BenchReport report = alike(5);
  report.nodes[3].gpu = {8, 2e12, 3e11, ""};
  report.nodes[4].gpu = {8, 1e12, 3e11, ""};
  EXPECT_EQ(odd_nodes(report),
            std::vector<std::string>{
                "node 4 (host4): its slowest GPU copies 1000 GB/s, that of the others 2000 GB/s"});
}

// One link of two nodes does not show whose fault it is.
TEST(OddNodes, AreNotFoundByTheLinkOfTwo) {
  BenchReport report = alike(2);
  slow_links_of(report, 1, 0.001);
  EXPECT_TRUE(odd_nodes(report).empty());
}

TEST(BenchText, ShowsLinksAsDigitsAndTheOddNode) {
  BenchReport report = alike(3);
  slow_links_of(report, 1, 0.35);
  const std::string text = to_text(report);
  EXPECT_NE(text.find("     0  .39\n     1  3.3\n     2  93.\n"), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce of 3 ranks:\n     1 KiB"), std::string::npos) << text;
  EXPECT_NE(text.find("Odd:\n  node 1 (host1)"), std::string::npos) << text;
}

TEST(BenchText, HasGpusOnlyIfANodeHasSome) {
  BenchReport report = alike(2);
  EXPECT_EQ(to_text(report).find("GPU"), std::string::npos) << to_text(report);
  report.nodes[1].gpu = {8, 2.1e12, 3.4e11, ""};
  const std::string text = to_text(report);
  EXPECT_TRUE(text.starts_with(
      "  node  memory copy     latency       links  GPUs     GPU copy  GPU multiply  host\n"
      "     0    10.0 GB/s     50.0 us   1.00 GB/s     0            -             -  host0\n"
      "     1    10.0 GB/s     50.0 us   1.00 GB/s     8    2100 GB/s       340 G/s  host1\n"))
      << text;
}

TEST(BenchText, OfOneNodeHasNoLinks) {
  BenchReport report = alike(1);
  const std::string text = to_text(report);
  EXPECT_EQ(text.find("Links"), std::string::npos) << text;
  EXPECT_NE(text.find("No node is odd."), std::string::npos) << text;
}

}  // namespace
}  // namespace ddprun
