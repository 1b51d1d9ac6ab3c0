// Tests ddprun doctor on hosts with faults. Each test has its own network, host name,
// /etc/hosts, /etc/resolv.conf and /dev/shm, in namespaces that end with the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/deadline.h"
#include "base/exit_codes.h"
#include "tests/support/certificates.h"
#include "tests/support/child_process.h"
#include "tests/support/netns_cluster.h"
#include "tests/support/program.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using namespace testing_support;

// Packets to these addresses are sent and never answered. The neighbour entry is set, but no
// such host exists.
constexpr const char* kSilentServer = "10.77.3.53";
constexpr const char* kSilentHost = "10.77.3.99";

struct Diagnosis {
  int exit_code = -1;
  Duration took{};
  std::string out;
  std::string err;
  nlohmann::json json;  // null if the output is not JSON

  nlohmann::json finding(const std::string& id) const {
    if (!json.is_object()) return nullptr;
    for (const nlohmann::json& one : json.at("findings")) {
      if (one.at("id") == id) return one;
    }
    return nullptr;
  }
  std::string text(const std::string& id, const char* what) const {
    const nlohmann::json found = finding(id);
    return found.is_null() ? "no finding" : found.at(what).get<std::string>();
  }
  std::string level(const std::string& id) const { return text(id, "level"); }
  std::string seen(const std::string& id) const { return text(id, "seen"); }
};

class DoctorTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why_not = NetnsCluster::why_not();
    if (!why_not.empty()) GTEST_SKIP() << "no host in a network namespace: " << why_not;
    set_hosts(
        "127.0.0.1 localhost\n10.77.3.1 ill\n::ffff:10.77.3.1 ill\n::ffff:127.0.0.1 localhost\n");
    set_resolver("# none\n");
  }

  void set_hosts(const std::string& text) const { std::ofstream(directory_ / "hosts") << text; }
  void set_resolver(const std::string& text) const {
    std::ofstream(directory_ / "resolv.conf") << text;
  }

  // Runs a line of shell on the host.
  std::unique_ptr<ChildProcess> on_host(const std::string& script) const {
    const std::string setup =
        "hostname ill && ip link set lo up && ip link add eth0 type veth peer name gone && "
        "ip link set gone up && ip link set eth0 up && ip addr add 10.77.3.1/24 dev eth0 && "
        "for a in " +
        std::string(kSilentServer) + " " + kSilentHost +
        "; do ip neigh add $a lladdr 02:00:00:00:00:99 dev eth0 nud permanent; done && "
        "mount --bind " +
        directory_ / "hosts" + " /etc/hosts && mount --bind " + directory_ / "resolv.conf" +
        " /etc/resolv.conf && mount -t tmpfs -o size=2g none /dev/shm "
        "|| exit 99\n";
    ChildProcess::Options options;
    options.directory = directory_.path();
    options.variables = {{"TMPDIR", directory_.path()}};
    return std::make_unique<ChildProcess>(
        Arguments{"setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--uts", "--ipc",
                  "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c", setup + script},
        options);
  }

  // before: a line of shell that causes the fault.
  Diagnosis diagnose(const std::string& arguments, const std::string& before = "true") const {
    const Deadline clock(kPatience);
    const auto doctor = on_host(before + "\n" + program("ddprun") + " doctor " + arguments);
    Diagnosis found;
    found.exit_code = doctor->wait().value_or(-1);
    found.took = clock.waited();
    found.out = doctor->out();
    found.err = doctor->err();
    found.json = nlohmann::json::parse(found.out, nullptr, false);
    if (found.json.is_discarded()) found.json = nullptr;
    return found;
  }

  // Returns a line of shell that starts a server and waits until it listens.
  std::string serving(const std::string& command) const {
    return command +
           " >server.log 2>&1 &\nuntil grep -q 'listening on' server.log; do sleep 0.02; done";
  }

  const TemporaryDirectory directory_;
};

constexpr int kUnwell = to_int(ExitCode::kUnwell);

TEST_F(DoctorTest, SaysThatAllIsWell) {
  const Diagnosis found = diagnose("--json");
  EXPECT_EQ(found.exit_code, 0) << found.out << found.err;
  EXPECT_EQ(found.json.value("ok", false), true);
  EXPECT_EQ(found.json.value("host", ""), "ill");
  EXPECT_EQ(found.level("host-name"), "ok");
  EXPECT_THAT(found.seen("host-name"), HasSubstr("ill resolves to 10.77.3.1"));
  EXPECT_EQ(found.level("shared-memory"), "ok");
  EXPECT_EQ(found.level("source-address"), "ok");
  EXPECT_THAT(found.seen("source-address"), HasSubstr("10.77.3.1 (eth0)"));
  EXPECT_EQ(found.level("endpoint"), "no finding") << "none was given";
}

TEST_F(DoctorTest, WritesALineForEachFindingWithoutColoursIntoAPipe) {
  const Diagnosis found = diagnose("");
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(StartsWith("ok       host-name "), HasSubstr("\nddprun doctor: "),
                               Not(HasSubstr("\x1b"))));
}

TEST_F(DoctorTest, NamesASilentNameServerAndDoesNotWaitForIt) {
  set_resolver("nameserver " + std::string(kSilentServer) + "\n");
  set_hosts("127.0.0.1 localhost\n10.77.3.1 ill\n");
  const Diagnosis found = diagnose("--json --rdzv-endpoint=node0.example:29400");
  EXPECT_EQ(found.exit_code, kUnwell) << found.out << found.err;
  EXPECT_LT(found.took, seconds(10));
  EXPECT_EQ(found.level("name-service"), "problem");
  EXPECT_THAT(found.seen("name-service"),
              HasSubstr(std::string(kSilentServer) + " did not answer"));
  EXPECT_EQ(found.level("address-names"), "problem");
  EXPECT_THAT(found.text("address-names", "advice"), HasSubstr("'::ffff:1"));
  EXPECT_EQ(found.level("endpoint"), "problem");
  EXPECT_THAT(found.seen("endpoint"), HasSubstr("node0.example: the name service did not answer"));
  EXPECT_EQ(found.level("host-name"), "ok") << "/etc/hosts has it";
}

TEST_F(DoctorTest, SeesThatTheHostsOwnNameDoesNotResolve) {
  set_hosts("127.0.0.1 localhost\n");
  const Diagnosis found = diagnose("--json");
  EXPECT_EQ(found.exit_code, kUnwell);
  EXPECT_EQ(found.level("host-name"), "problem");
  EXPECT_THAT(found.seen("host-name"), HasSubstr("ill does not resolve"));
}

TEST_F(DoctorTest, SeesSmallSharedMemoryAndWhoFillsIt) {
  Diagnosis found = diagnose("--json", "mount -o remount,size=16m /dev/shm");
  EXPECT_EQ(found.exit_code, kUnwell);
  EXPECT_THAT(found.seen("shared-memory"), HasSubstr("16.0 MiB"));
  EXPECT_THAT(found.text("shared-memory", "advice"), HasSubstr("--shm-size"));
  found = diagnose("--json", "mount -o remount,size=80m /dev/shm; fallocate -l 70m /dev/shm/left");
  EXPECT_EQ(found.exit_code, kUnwell);
  EXPECT_THAT(found.seen("shared-memory"), HasSubstr("1 file there with 70.0 MiB"));
}

TEST_F(DoctorTest, SeesLowLimits) {
  const Diagnosis found =
      diagnose("--json", "prlimit --nofile=128 --nproc=20 --memlock=32768 --pid $$");
  EXPECT_EQ(found.exit_code, kUnwell) << found.out << found.err;
  EXPECT_EQ(found.level("open-files"), "problem");
  EXPECT_THAT(found.seen("open-files"), HasSubstr("128 open files"));
  EXPECT_THAT(found.level("processes"), Not("ok"));
  EXPECT_THAT(found.seen("processes"), HasSubstr("may have 20 "));
  EXPECT_EQ(found.level("locked-memory"), "warning");
}

TEST_F(DoctorTest, SeesTheCoresOfTheCpuset) {
  const Diagnosis found = diagnose("--json --nproc-per-node=3", "taskset -p 1 $$ >taskset.log");
  EXPECT_EQ(found.level("cores"), "warning");
  EXPECT_THAT(found.seen("cores"), StartsWith("1 of "));
}

TEST_F(DoctorTest, FindsAServiceWithItsVersion) {
  const Diagnosis found =
      diagnose("--json --rdzv-endpoint=ill:29400",
               serving(program("ddp-rendezvous") + " --munge-socket=none --listen '*:29400'"));
  EXPECT_EQ(found.exit_code, 0) << found.out << found.err;
  EXPECT_EQ(found.level("service"), "ok");
  EXPECT_THAT(found.seen("service"), HasSubstr("a rendezvous service answers at ill:29400"));
  EXPECT_EQ(found.level("endpoint-reach"), "ok");
  EXPECT_THAT(found.seen("clock"), HasSubstr("the service's is"));
}

TEST_F(DoctorTest, ComparesKeysWithTheService) {
  std::ofstream(directory_ / "key") << "the_key_of_this_cluster\n";
  std::ofstream(directory_ / "other") << "not_the_key_of_this_cluster\n";
  const std::string server =
      serving(program("ddp-rendezvous") + " --rdzv-key-file key --listen '*:29400'");
  const std::string endpoint = "--json --rdzv-endpoint=ill:29400 ";
  EXPECT_THAT(diagnose(endpoint, server).seen("service"), HasSubstr("requires a key"));
  const Diagnosis other = diagnose(endpoint + "--rdzv-key-file=other", server);
  EXPECT_EQ(other.exit_code, kUnwell);
  EXPECT_THAT(other.seen("service"), HasSubstr("do not have the same key"));
  const Diagnosis right = diagnose(endpoint + "--rdzv-key-file=key", server);
  EXPECT_EQ(right.exit_code, 0) << right.out << right.err;
  EXPECT_THAT(right.seen("service"), HasSubstr("it has the same key"));
}

TEST_F(DoctorTest, SpeaksTlsWithTheService) {
  const Authority ours(directory_.path(), "ours");
  const Authority other(directory_.path(), "other");
  ours.issue("service", {.names = "DNS:ill"});
  const std::string server = serving(program("ddp-rendezvous") +
                                     " --munge-socket=none --rdzv-tls-cert service.crt"
                                     " --rdzv-tls-key service.key --listen '*:29400'");
  const std::string endpoint = "--json --rdzv-endpoint=ill:29400 ";
  EXPECT_THAT(diagnose(endpoint, server).seen("service"), HasSubstr("requires TLS"));
  const Diagnosis wrong = diagnose(endpoint + "--rdzv-tls-ca=other.ca", server);
  EXPECT_EQ(wrong.exit_code, kUnwell);
  EXPECT_THAT(wrong.seen("service"), HasSubstr("TLS with ill:29400 fails: "));
  const Diagnosis right = diagnose(endpoint + "--rdzv-tls-ca=ours.ca", server);
  EXPECT_EQ(right.exit_code, 0) << right.out << right.err;
  EXPECT_THAT(right.seen("service"), HasSubstr("a rendezvous service answers"));
}

TEST_F(DoctorTest, NamesWhoElseHasThePort) {
  const Diagnosis found = diagnose("--json --rdzv-endpoint=ill:29400",
                                   serving(program("ddp-store") + " --listen '*:29400'"));
  EXPECT_EQ(found.exit_code, kUnwell);
  EXPECT_EQ(found.level("service"), "problem");
  EXPECT_THAT(found.seen("service"), HasSubstr("not a rendezvous service"));
  EXPECT_EQ(found.level("endpoint-port"), "problem");
  EXPECT_THAT(found.seen("endpoint-port"), HasSubstr("ddp-store (pid "));
}

TEST_F(DoctorTest, TellsAFreePortOfThisHostFromASilentHost) {
  const Diagnosis here = diagnose("--json --rdzv-endpoint=ill:29400");
  EXPECT_EQ(here.exit_code, 0) << here.out;
  EXPECT_THAT(here.seen("endpoint-reach"), HasSubstr("ddprun would start the service here"));
  EXPECT_THAT(here.seen("endpoint-port"), HasSubstr("port 29400 is free here"));

  const Diagnosis silent =
      diagnose("--json --rdzv-endpoint=" + std::string(kSilentHost) + ":29400");
  EXPECT_EQ(silent.exit_code, kUnwell);
  EXPECT_LT(silent.took, seconds(10));
  EXPECT_THAT(silent.seen("endpoint-reach"), HasSubstr("10.77.3.99:29400: no answer within "));
  EXPECT_THAT(silent.seen("source-address"), HasSubstr("this host's address is 10.77.3.1 (eth0)"));

  const Diagnosis unreachable = diagnose("--json --rdzv-endpoint=192.0.2.1:29400");
  EXPECT_EQ(unreachable.exit_code, kUnwell);
  EXPECT_THAT(unreachable.seen("endpoint-reach"), HasSubstr("Network is unreachable"));
}

TEST_F(DoctorTest, LooksAtWhatTheJobOfACommandLineNeeds) {
  // The options are as users write them: with = or without, and shortened as torchrun allows.
  const Diagnosis found = diagnose(
      "--nnodes=2 --rdzv-endpoint=localhost --local-addr=10.9.0.0/16 --port-range 29500-29501 "
      "--nproc 2 --json ./missing --json-of-its-own");
  EXPECT_EQ(found.exit_code, kUnwell) << found.err;
  EXPECT_THAT(found.seen("endpoint"), HasSubstr("localhost resolves to"));
  EXPECT_EQ(found.level("endpoint"), "problem");
  EXPECT_EQ(found.level("source-address"), "problem");
  EXPECT_THAT(found.seen("port-range"), HasSubstr("2 of 2 ports"));
  EXPECT_EQ(found.level("port-range"), "problem") << "the store and two workers";
  EXPECT_THAT(found.seen("program"), HasSubstr("./missing: no such file"));
}

constexpr const char* kWithFakeDriver = "export LD_LIBRARY_PATH=" FAKE_DRIVER_DIR " FAKE_DRIVER=";

TEST_F(DoctorTest, SeesGpusTheirDriverAndWhatLibTorchWants) {
  directory_.write("site-packages/torch/lib/libtorch.so", "");
  directory_.write("site-packages/torch/version.py",
                   "__version__ = '2.11.0+cu130'\ncuda = '13.0'\n");
  directory_.write("site-packages/torch-2.11.0.dist-info/METADATA",
                   "Requires-Dist: nvidia-nccl-cu13==2.28.9\n");
  const Diagnosis found = diagnose("--json --nproc-per-node=gpu --libtorch=site-packages/torch",
                                   kWithFakeDriver + std::string("well"));
  EXPECT_EQ(found.exit_code, kUnwell) << found.out << found.err;
  EXPECT_EQ(found.seen("gpus"), "2 GPUs; 1 without persistence mode");
  EXPECT_EQ(found.level("driver"), "problem");
  EXPECT_EQ(
      found.seen("driver"),
      "NVIDIA's driver is 570.99, for CUDA up to 12.8; LibTorch 2.11.0+cu130 is built with 13.0");
  EXPECT_EQ(found.level("nccl"), "problem");
  EXPECT_THAT(found.seen("nccl"),
              AllOf(HasSubstr("NCCL 2.18.1 at "), HasSubstr("was built with 2.28.9")));
  const Diagnosis hidden = diagnose("--json --nproc-per-node=gpu",
                                    kWithFakeDriver + std::string("well CUDA_VISIBLE_DEVICES="));
  EXPECT_THAT(hidden.seen("gpus"), HasSubstr("of these 0 by CUDA_VISIBLE_DEVICES="));
  EXPECT_EQ(hidden.level("gpus"), "problem");
  // As in CUDA: no device counts after the first one that does not exist.
  const Diagnosis partly =
      diagnose("--json", kWithFakeDriver + std::string("well CUDA_VISIBLE_DEVICES=1,7,0"));
  EXPECT_THAT(partly.seen("gpus"), HasSubstr("of these 1 by CUDA_VISIBLE_DEVICES=1,7,0"));
}

TEST_F(DoctorTest, DoesNotWaitForADriverThatHangs) {
  const Diagnosis found = diagnose("--json", kWithFakeDriver + std::string("hangs"));
  EXPECT_EQ(found.exit_code, kUnwell) << found.out << found.err;
  EXPECT_LT(found.took, seconds(20));
  EXPECT_EQ(found.level("gpus"), "problem");
  EXPECT_THAT(found.seen("gpus"), HasSubstr("does not answer"));
}

TEST_F(DoctorTest, LeavesNothingBehind) {
  const auto host = on_host("ls -A /dev/shm $TMPDIR >before; " + program("ddprun") +
                            " doctor --rdzv-endpoint=ill:29400 >/dev/null; "
                            "ls -A /dev/shm $TMPDIR | diff before - && cat /proc/net/tcp | wc -l");
  EXPECT_EQ(host->wait(), 0) << host->out() << host->err();
  EXPECT_EQ(host->out(), "1\n") << "the head of an empty table";
}

// --- the command line; nothing is checked -------------------------------------------------------

struct Spoken {
  int exit_code = -1;
  std::string out;
  std::string err;
};

Spoken say(const Arguments& arguments) {
  ChildProcess doctor(joined({program("ddprun"), "doctor"}, arguments));
  const int code = doctor.wait().value_or(-1);
  return {code, doctor.out(), doctor.err()};
}

TEST(DoctorCommandLine, HasAHelpOfItsOwn) {
  const Spoken help = say({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, AllOf(StartsWith("Usage: ddprun doctor"), HasSubstr("--json")));
}

TEST(DoctorCommandLine, SaysInOneLineWhatIsWrongWithIt) {
  const std::map<std::string, Arguments> wrong{
      {"ddprun doctor: error: unknown option --rdzv-endpont: did you mean --rdzv-endpoint?\n",
       {"--rdzv-endpont=a"}},
      {"ddprun doctor: error: unknown option --jsn: did you mean --json?\n", {"--jsn"}},
      {"ddprun doctor: error: --libtorch: the value is missing (expected DIR)\n", {"--libtorch"}},
      {"ddprun doctor: error: --version, --print-config and --dry-run cannot be used with doctor\n",
       {"--dry-run"}},
  };
  for (const auto& [line, arguments] : wrong) {
    const Spoken said = say(arguments);
    EXPECT_EQ(said.exit_code, to_int(ExitCode::kUsage)) << line;
    EXPECT_EQ(said.err, line);
    EXPECT_EQ(said.out, "");
  }
}

}  // namespace
}  // namespace ddprun
