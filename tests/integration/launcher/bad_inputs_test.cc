// Tests the exact answers of ddprun, ddp-rendezvous and ddp-store to bad input, against
// tests/data/bad_inputs.golden. Each case below is run. The file has those cases and no
// others.
//
// If DDPRUN_WRITE_GOLDEN=1 is in the environment, the test writes the file again. Read the
// difference then.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <thread>

#include "base/exit_codes.h"
#include "rendezvous/net/listen.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/certificates.h"
#include "tests/support/held_port.h"

namespace ddprun::testing_support {
namespace {

using std::chrono::seconds;

constexpr const char* kGolden = DDPRUN_SOURCE_DIR "/tests/data/bad_inputs.golden";

constexpr const char* kJob = "train-bad-inputs";  // the job of the cases that need a running one

constexpr const char* kHead =
    R"(# How bad input is answered: the command, the text on standard error and the exit code
# (docs/reference/exit_codes.md). tests/integration/launcher/bad_inputs_test.cc has the cases, runs
# them, and says how to write this file again. Words stand for what differs from run to run: DIR,
# HOST, PID, UID, RANDOM, TIME, and WHY for texts of other libraries. $NAME is a variable of the
# shell.
)";

// FakeEtcd: gives every request the same answer, or none.
class FakeEtcd {
 public:
  FakeEtcd(const std::string& status, const std::string& body)
      : listener_(listen_tcp("127.0.0.1", PortRange{20000, 29000}).value()) {
    if (!status.empty()) {
      answer_ = "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\nConnection: close\r\n\r\n" + body;
    }
    fcntl(listener_.socket.get(), F_SETFL, 0);  // accept() waits
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeEtcd() {
    shutdown(listener_.socket.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string endpoint() const { return to_text(listener_.address); }

 private:
  void serve() const {
    std::vector<UniqueFd> silent;
    for (;;) {
      UniqueFd client(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client.valid()) return;
      std::array<char, 4096> request;
      const bool is_answered = recv(client.get(), request.data(), request.size(), 0) > 0 &&
                               !answer_.empty() &&
                               send(client.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL) > 0;
      if (!is_answered) silent.push_back(std::move(client));
    }
  }

  const Listener listener_;
  std::string answer_;
  std::thread thread_;
};

// The number of lines of an answer.
enum class Lines { kOne, kSeveral };

class BadInputs : public LauncherTest {
 protected:
  void SetUp() override {
    LauncherTest::SetUp();
    std::filesystem::create_directory(runtime());
    make_files();
  }
  void TearDown() override {
    LauncherTest::TearDown();
    EXPECT_TRUE(std::filesystem::is_empty(runtime())) << "a socket was left behind";
  }

  std::string runtime() const { return directory_ / "run"; }

  void write(const std::string& name, const std::string& text, int mode = 0644) const {
    std::ofstream(directory_ / name) << text;
    std::filesystem::permissions(directory_ / name, static_cast<std::filesystem::perms>(mode));
  }

  void make_files() const {
    std::filesystem::create_directory(directory_ / "folder");
    std::filesystem::create_directory(directory_ / "folder.py");
    std::filesystem::create_directory(directory_ / "state");
    write("state/journal", "nonsense");
    std::filesystem::create_directories(directory_ / "build/bin");
    write("build/bin/model", "#!/bin/sh\n", 0755);
    write("data.txt", "x");
    write("train.py", "");
    write("script", "#!/no/such/interpreter -x\n", 0755);
    write("windows", "#!/bin/sh\r\n", 0755);
    write("words", "echo hello\n", 0755);
    write("empty", "", 0755);

    write("zero.hosts", "node0 slots=4\nnode1 slots=0\n");
    write("pbs_nodes", "n1\nn1\nn2\n");
    write("twice.hosts", "node0\n# the same\nme@node0 slots=2\n");
    write("key.hosts", "node0 gpus=4\n");
    write("mpi.hosts", "node0 max_slots=many\n");
    write("none.hosts", "# node0\n\n");
    // In place of ssh. The last argument is the command for the host.
    write("refusing", "#!/bin/sh\necho 'node0: Permission denied (publickey).' >&2\nexit 255\n",
          0755);
    write("lacking", "#!/bin/sh\necho 'exec: ddprun: not found' >&2\nexit 127\n", 0755);
    write("unaware", "#!/bin/sh\necho 'ddprun: error: ssh-node: no such program' >&2\nexit 2\n",
          0755);
    write("older",
          "#!/bin/sh\n"
          "echo 'ddprun-ssh-node {\"greeted\":[\"0.0.1\",\"/usr/bin/ddprun\",\"\"]}'\n"
          "exec cat >/dev/null\n",
          0755);
    write("noisy", "#!/bin/sh\nyes &\nexit 255\n", 0755);  // leaves a process that fills its pipe
    write("silent", "#!/bin/sh\nexec cat >/dev/null\n", 0755);
    write("here", "#!/bin/sh\nfor command; do :; done\nexec sh -c \"$command\"\n", 0755);

    write("key", "0123456789abcdef\n", 0600);
    write("wrong.key", "fedcba9876543210\n", 0600);
    write("open.key", "0123456789abcdef\n", 0644);
    write("empty.key", "\n", 0600);
    write("short.key", "0123\n", 0600);
    write("three.key", "job1 with spaces\n", 0600);
    write("job1.key", "job1 0123456789abcdef\n", 0600);
    write("nonsense.pem", "nonsense\n", 0600);

    write("cut.json", R"({"nproc-per-node": 8)");
    write("comma.json", "{\n  \"nnodes\": 2,\n}\n");
    write("list.json", "[1]");
    write("empty.json", "");
    write("misspelt.json", R"({"nproc-per-nod": 8})");
    write("unknown.json", R"({"frobnicate": 8})");
    write("many.json", R"({"nproc-per-node": "many"})");
    write("two.json", R"({"nproc-per-node": [2, 4]})");
    write("null.json", R"({"role": null})");
    write("object.json", R"({"env": {"A": "1"}})");
    write("huge.json", R"({"max-restarts": 1e999})");
    write("float.json", R"({"max-restarts": 1.5})");
    write("program.json", R"({"program": ["train.py", "--x"]})");
    write("args.json", R"({"program": "train.py", "args": "--x"})");
    write("alone.json", R"({"args": ["--x"]})");
    write("nested.json", R"({"config": "other.json"})");
    write("twice.json", R"({"max-restarts": 1, "max_restarts": 2})");
  }

  Variables variables() const {
    Variables all{{"PATH", std::string(DDPRUN_BIN_DIR) + ":" + std::getenv("PATH")},
                  {"BIN", DDPRUN_BIN_DIR},
                  {"XDG_RUNTIME_DIR", runtime()},
                  {"CUDA_VISIBLE_DEVICES", ""}};
    all.insert(all.end(), places_.begin(), places_.end());
    return all;
  }

  std::unique_ptr<ChildProcess> started(const Arguments& arguments) const {
    ChildProcess::Options options = environment(variables());
    options.input = "/dev/null";  // a terminal would be a shell's, in the cases of Slurm
    return std::make_unique<ChildProcess>(
        joined({program(arguments.front())}, {arguments.begin() + 1, arguments.end()}), options);
  }
  // Adds a variable of the command lines of the cases.
  void add_place(const std::string& name, const std::string& value) {
    places_.emplace_back(name, value);
  }
  // Starts a service for the cases. The variable `name` of their command lines has its
  // address.
  std::unique_ptr<ChildProcess> serve(const std::string& name, const Arguments& arguments) {
    auto service = started(joined(arguments, {"--listen=127.0.0.1:0"}));
    add_place(name, listening_address(*service));
    EXPECT_NE(places_.back().second, "") << service->err();
    return service;
  }
  static void end(ChildProcess& service) {
    service.signal(SIGTERM);
    EXPECT_EQ(service.wait(), 0) << service.err();
  }

  // Removes lines that depend on other runs: commands list all jobs of this user.
  static std::string without_others(const std::string& words) {
    static const std::regex job("  job '(?!" + std::string(kJob) + "').*\n");
    return std::regex_replace(words, job, "");
  }

  // Replaces text that differs between runs by a fixed word.
  std::string in_general(std::string text) const {
    for (const auto& [name, value] : places_) {
      const std::string word = "$" + name;
      for (std::size_t at = text.find(value); at != std::string::npos;
           at = text.find(value, at + word.size())) {
        text.replace(at, value.size(), word);
      }
    }
    static const std::vector<std::pair<std::regex, std::string>> words = [] {
      const std::vector<std::pair<std::string, std::string>> texts{
          {"(nodes here: )[^ ;\\n]+", "$1HOST"},
          {"(has|is) ddprun [0-9.]+", "$1 ddprun VERSION"},
          {"neither \\S+/ddprun", "neither BIN/ddprun"},
          {"(local rank \\d+ on )[^ ,)]+", "$1HOST"},
          {"'  +ddprun \\d+ *", "'  ddprun PID "},
          {"(pid|ddprun) \\d+ *", "$1 PID "},
          {"\\buser \\d+", "user UID"},
          {"_[0-9a-f]{8}\\b", "_RANDOM"},
          {"since \\d.* UTC \\([^)]*\\) *", "since TIME  "},
          {"(resolve [^:\\n]+): .*", "$1: WHY"},
          {"\\(OpenSSL: [^)]*\\)", "(OpenSSL: WHY)"},
          {"(interface of this host) \\([^)]*\\)", "$1 (...)"},
          {"its addresses: .*", "its addresses: ..."},
          {"(\\[::\\]|0\\.0\\.0\\.0):\\d+", "*:PORT"},
      };
      std::vector<std::pair<std::regex, std::string>> made;
      for (const auto& [pattern, word] : texts) made.emplace_back(std::regex(pattern), word);
      return made;
    }();
    for (const auto& [pattern, word] : words) text = std::regex_replace(text, pattern, word);
    for (std::size_t at = 0; (at = text.find(directory_.path(), at)) != std::string::npos;) {
      text.replace(at, directory_.path().size(), "DIR");
    }
    return text;
  }

  // Runs the cases and records the answers.
  void section(const std::string& title, const std::string& commands) {
    section(title, Lines::kOne, commands);
  }
  // commands: one in each line.
  void section(const std::string& title, Lines lines, const std::string& commands) {
    now_ += "\n## " + title + "\n";
    for (const std::string& command : lines_of(commands)) {
      if (command.empty()) continue;
      SCOPED_TRACE(command);
      ChildProcess child({"sh", "-c", command}, environment(variables()));
      // The machine's resolver may take long for a name that does not exist.
      const std::optional<int> code = child.wait(seconds(40));
      ASSERT_TRUE(code) << "it has not ended: " << child.err();
      const bool is_documented = std::ranges::any_of(
          kExitCodes, [&](const ExitCodeText& row) { return to_int(row.code) == *code; });
      EXPECT_TRUE(is_documented && *code != 0) << "exit code " << *code;
      EXPECT_EQ(child.out(), "");
      const std::string words = without_others(child.err());
      EXPECT_TRUE(words.ends_with('\n')) << words;
      EXPECT_EQ(lines_of(words).size() == 1, lines == Lines::kOne) << words;
      EXPECT_THAT(words,
                  testing::ContainsRegex("^(ddprun|ddprun doctor|ddp-rendezvous|ddp-store): "));
      now_ +=
          "\n$ " + command + "\n" + in_general(words) + "exit code " + std::to_string(*code) + "\n";
    }
  }

  // Returns the cases of such a text, by their command.
  static std::map<std::string, std::string> cases_of(const std::string& text) {
    std::map<std::string, std::string> cases;
    std::string* answer = nullptr;
    for (const std::string& line : lines_of(text)) {
      if (line.empty() || line.starts_with('#')) {
        answer = nullptr;
      } else if (line.starts_with("$ ")) {
        answer = &cases[line.substr(2)];
      } else if (answer) {
        *answer += line + "\n";
      }
    }
    return cases;
  }

  void try_command_lines() {
    section("Options that are not there", R"(
ddprun --nonsense true
ddprun --nproc-per-nodes=2 true
ddprun --nprocs=2 true
ddprun --maxrestarts=3 true
ddprun -np 2 true
ddprun -n 2 true
ddprun --rdzv=node0 true
ddprun --no-standalone true
ddprun --signals-to-handle=SIGTERM,SIGUSR1 true
ddprun --duplicate-stdout-filters=loss true
)");
    section("Values that are missing or empty", R"(
ddprun
ddprun --nproc-per-node
ddprun --nproc-per-node= true
ddprun --standalone= true
ddprun --rdzv-id= true
ddprun --rdzv-key-file= --nnodes=2 --rdzv-endpoint=node0 true
ddprun --config= true
ddprun --master-addr= --nnodes=2 true
ddprun --env true
ddprun -r
ddprun -m
ddprun -m ''
ddprun ''
)");
    section("Numbers, times and words", R"(
ddprun --nproc-per-node=0 true
ddprun --nproc-per-node=two true
ddprun --nproc-per-node=1.5 true
ddprun --nproc-per-node=100000 true
ddprun --nproc-per-node=gpu true
ddprun --nproc-per-node=xpu true
ddprun --max-restarts=-1 true
ddprun --max-restarts=99999999999999999999 true
ddprun --node-failures=0 true
ddprun --node-check=memory=0 true
ddprun --node-check=disk=1 true
ddprun --node-check=memory=4000,link true
ddprun --node-check=nan=1 true
ddprun --node-check=core=nan true
ddprun --node-check=gpu=-1 true
ddprun --node-check=maybe true
ddprun --restart-window=1h true
ddprun --hang-timeout=soon true
ddprun --hang-timeout=-5 true
ddprun --restart-on-progress=maybe true
ddprun --shutdown-grace=-1 true
ddprun --shutdown-grace=nan true
ddprun --lease=0 true
ddprun --lease=1e9 true
ddprun --no-restart-on=SIGKILL true
ddprun --no-restart-on=9-3 true
ddprun --no-restart-on=300 true
ddprun --checkpoint-signal=KILL true
ddprun --requeue=-1 true
ddprun --requeue=often true
ddprun --save-before-end=a-minute true
ddprun --standalone=maybe true
ddprun --umask=9 true
ddprun --env=A true
ddprun --env=RANK=0 true
ddprun --bind=cores true
ddprun --numa-binding=sockets true
ddprun --gpu-visibility=none true
ddprun --on-join=later true
ddprun --worker-store=rank1 true
ddprun --start-method=thread true
ddprun --event-log-handler=file true
ddprun --logs-specs=custom true
ddprun --log-format=xml true
ddprun --log-max-bytes=10 true
ddprun -r 4 true
ddprun -t 0:1,1 true
ddprun --local-ranks-filter=0-3 true
ddprun --store-allow=10.1.0.0/33 true
ddprun --help=please
)");
    section("Options that do not go together", R"(
ddprun --quiet --verbose true
ddprun --standalone --nnodes=2 true
ddprun --no-python -m package.train
ddprun --run-path -m package.train
ddprun --bind=core --numa-binding=node true
ddprun --bind=gpu true
ddprun --on-join=checkpoint --worker-store=rank0 true
ddprun --lease=5 --heartbeat-interval=2 true
ddprun --nnodes=2 true
ddprun --nnodes=2 --rdzv-backend=c10d true
ddprun --nnodes=1:2 --rdzv-backend=static true
ddprun --nnodes=2 --node-rank=2 --master-addr=node0 true
ddprun --require-auth --munge-socket=none --nnodes=2 --rdzv-endpoint=node0 true
)");
    section("Nodes, hosts and ports", R"(
ddprun --nnodes=0 true
ddprun --nnodes=3:2 true
ddprun --nnodes=1-4 true
ddprun --nnodes=1000000 true
ddprun --node-rank=-1 true
ddprun --rdzv-backend=etcd true
ddprun --rdzv-backend=zookeeper true
ddprun --rdzv-backend=etcd-v2 --rdzv-endpoint=e1,,e2 true
ddprun --rdzv-backend=etcd --rdzv-endpoint=e1 --rdzv-conf=protocol=ftp true
ddprun --rdzv-backend=etcd --rdzv-endpoint=e1 --rdzv-conf=cacert=ca.pem true
ddprun --rdzv-backend=etcd --rdzv-endpoint=e1 --rdzv-conf=protocol=https,cacert=ca --rdzv-id=j true
ddprun --rdzv-backend=etcd --rdzv-endpoint=e1 true
ddprun --rdzv-backend=etcd --hosts=node0,node1 true
ddprun --nnodes=2 --rdzv-endpoint=node0:port true
ddprun --nnodes=2 --rdzv-endpoint=node0: true
ddprun --nnodes=2 --rdzv-endpoint=node0:70000 true
ddprun --nnodes=2 --rdzv-endpoint=node0:0 true
ddprun --nnodes=2 --rdzv-endpoint=:29400 true
ddprun --nnodes=2 --rdzv-endpoint=http://node0:29400 true
ddprun --nnodes=2 --rdzv-endpoint=me@node0:29400 true
ddprun --nnodes=2 --rdzv-endpoint=[::1 true
ddprun --nnodes=2 --rdzv-endpoint=fe80::1:29400 true
ddprun --nnodes=2 --rdzv-endpoint=no-such-host.invalid true
ddprun --nnodes=2 --rdzv-endpoint=r1,,r2 true
ddprun --nnodes=2 --rdzv-endpoint=r1:29400,r2,r1 true
ddprun --nnodes=2 --rdzv-endpoint=r1,r2:port true
ddprun --nnodes=2 --rdzv-endpoint=r1,r2:0 true
ddprun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=r1,r2 true
ddprun --nnodes=2 --rdzv-backend=static --rdzv-endpoint=r1,r2 true
ddprun --nnodes=2 --master-addr=198.51.100.1 true
ddprun --nnodes=2 --master-addr=127.0.0.1 --master-port=0 true
ddprun --master-port=99999 true
ddprun --port-range=29599-29500 true
ddprun --port-range=0 true
ddprun --rdzv-conf=join_timeout true
ddprun --shutdown-timeout=-1 true
ddprun --shutdown-timeout=1 --shutdown-grace=1 true
ddprun --print-completion=bash true
ddprun list
ddprun ps
ddprun ls -l
ddprun --rdzv-conf=join_timeout=soon true
ddprun --local-addr=10.1.0.0/99 true
ddprun --local-addr=203.0.113.0/24 true
ddprun --local-addr=no-such-interface.invalid true
)");
  }

  void try_ssh() {
    section("Hosts for ssh", R"(
ddprun --hosts= true
ddprun --hosts=, true
ddprun --hosts=node0,,node1 true
ddprun --hosts='node*' true
ddprun --hosts=node0:0 true
ddprun --hosts=node0:many true
ddprun --hosts=node0: true
ddprun --hosts=node0,me@node0:2 true
ddprun --hosts=fe80::1 true
ddprun --hosts=[fe80::1 true
ddprun --hosts=-oProxyCommand=reboot true
ddprun --hosts='node0 node1' true
ddprun --hostfile= true
ddprun --hostfile=nowhere true
ddprun --hostfile=folder true
ddprun --hostfile=zero.hosts true
ddprun --hostfile=twice.hosts true
ddprun --hostfile=key.hosts true
ddprun --hostfile=mpi.hosts true
ddprun --hostfile=none.hosts true
)");
    section("Options that contradict --hosts, or need it", R"(
ddprun --hosts=node0 --hostfile=zero.hosts true
ddprun --hosts=node0 --hostfile=false true
ddprun --hosts=node0,node1 --nnodes=3 true
ddprun --hosts=node0,node1 --nnodes=1:2 true
PET_NNODES=3 ddprun --hosts=node0,node1 true
ddprun --hosts=node0 --node-rank=0 true
ddprun --hosts=node0 --rdzv-endpoint=node0 true
ddprun --hosts=node0 --rdzv-backend=static true
ddprun --hosts=node0 --master-addr=node0 true
ddprun --hosts=node0 --master-port=29500 true
ddprun --hosts=node0 --standalone true
ddprun --hosts=node0 --rdzv-key-file=key true
ddprun --hosts=node0 --stdin true
ddprun --hosts=node0,node1 --max-restarts=1 --lease=5 --heartbeat-interval=2 true
ddprun --copy=data.txt true
)");
    section("ssh and the far end", R"(
ddprun --hosts=node0 --ssh= true
ddprun --hosts=node0 --ssh="ssh 'x" true
ddprun --hosts=node0 --ssh=no-such-ssh true
ddprun --hosts=node0 --connect-timeout=0 true
ddprun --hosts=node0 --connect-timeout=soon true
ddprun --hosts=node0 --copy=nowhere true
ddprun --hosts=node0 --copy=folder true
ddprun --hosts=node0 --ssh=./refusing true
ddprun --hosts=node0 --ssh=./lacking true
ddprun --hosts=node0 --ssh=./unaware true
ddprun --hosts=node0 --ssh=./noisy true
ddprun --hosts=node0 --ssh=./older true
ddprun --hosts=node0 --ssh=./silent --connect-timeout=0.3 true
ddprun --hosts=node0 --ssh=./here ./nowhere
ddprun --hosts=node0 --ssh=./here --chdir=nowhere true
)");
  }

  void try_files_and_programs() {
    section("The file of --config", R"(
ddprun --config=none.json
ddprun --config=folder
ddprun --config=empty.json
ddprun --config=cut.json
ddprun --config=comma.json
ddprun --config=list.json
ddprun --config=misspelt.json
ddprun --config=unknown.json
ddprun --config=many.json true
ddprun --config=two.json true
ddprun --config=null.json true
ddprun --config=object.json true
ddprun --config=huge.json true
ddprun --config=float.json true
ddprun --config=program.json
ddprun --config=args.json
ddprun --config=alone.json
ddprun --config=nested.json true
ddprun --config=twice.json true
)");
    section("The environment", R"(
PET_NNODES=x ddprun true
PET_NPROC_PER_NODE= ddprun true
PET_STANDALONE=yes ddprun true
PET_CONFIG=none.json ddprun true
PET_CONFIG=many.json ddprun true
PET_SIGNALS_TO_HANDLE=SIGUSR1 ddprun true
PYTHON_EXEC=no-such-python ddprun train.py
env PATH=/nowhere $BIN/ddprun train.py
TMPDIR=/nowhere ddprun true
DDPRUN_RDZV_KEY=0123 ddprun --nnodes=2 --rdzv-endpoint=node0 true
)");
    add_place("STEP",
              "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[0-1] "
              "SLURM_STEP_TASKS_PER_NODE=1(x2)");
    section("In a step of Slurm", R"(
env $STEP SLURM_STEP_NODELIST='n[0-' ddprun true
env $STEP SLURM_STEP_NODELIST='n[0-2]' ddprun true
env -u SLURM_STEP_NODELIST SLURM_JOB_ID=7 SLURM_STEP_ID=0 ddprun true
env $STEP SLURM_NODEID=2 ddprun true
env $STEP SLURM_NODEID=none ddprun true
env $STEP SLURM_STEP_TASKS_PER_NODE='2(x2' ddprun true
env $STEP SLURM_STEP_TASKS_PER_NODE='8(x2)' ddprun true
env $STEP SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE='8(x2)' ddprun --nnodes=2 --master-addr=n0 x
env $STEP SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE='2(x2)' ddprun --rdzv-endpoint=n0 true
env $STEP SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE='2(x2)' ddprun --nnodes=1 --master-addr=n0 true
env $STEP ddprun --rdzv-backend=etcd true
env $STEP SLURM_STEP_TASKS_PER_NODE='8(x2)' SLURM_LOCALID=first ddprun true
env SLURM_JOB_ID=7 SLURM_JOB_NODELIST='n[0-' ddprun true
env -u SLURM_STEP_ID SLURM_JOB_ID=7 SLURM_JOB_NODELIST='n[0-1]' ddprun --nnodes=two true
env $STEP ddprun --nnodes=3 true
env $STEP ddprun --node-rank=2 true
env $STEP ddprun --node-rank=0 true
env $STEP PET_NODE_RANK=first ddprun true
env $STEP ddprun --no-detect=maybe true
)");
    section("Under other schedulers", R"(
env MPI_LOCALNRANKS=1 ddprun true
env MPI_LOCALNRANKS=1 PMI_SIZE=2 PMI_RANK=2 ddprun true
env MPI_LOCALNRANKS=1 PMI_SIZE=2 PMI_RANK=1 ddprun true
env MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_SIZE=2 PMI_RANK=1 ddprun true
env FLUX_TASK_RANK=2 FLUX_JOB_SIZE=6 FLUX_JOB_NNODES=4 FLUX_TASK_LOCAL_ID=0 ddprun true
env PBS_JOBID=12.server PBS_NUM_NODES=4 ddprun true
env PBS_JOBID=12.server PBS_NUM_NODES=some ddprun true
env PBS_JOBID=12.server PBS_NODEFILE=pbs_nodes ddprun true
env LSB_JOBID=77 LSB_MCPU_HOSTS='hostA 4 hostB 4' LSF_PM_TASKID=1 ddprun true
env LSB_JOBID=77 LSB_MCPU_HOSTS=hostA ddprun true
env SGE_TASK_ID=undefined JOB_ID=9 NHOSTS=2 ddprun true
env KUBERNETES_SERVICE_HOST=x LWS_LEADER_ADDRESS=a LWS_GROUP_SIZE=3 LWS_WORKER_INDEX=3 ddprun true
env KUBERNETES_SERVICE_HOST=x JOB_COMPLETION_INDEX=1 PET_NNODES=2 ddprun true
env KUBERNETES_SERVICE_HOST=x JOB_COMPLETION_INDEX=1 PET_RDZV_ENDPOINT=h:29400 ddprun true
env KUBERNETES_SERVICE_HOST=x JOB_COMPLETION_INDEX=first PET_NNODES=2 ddprun true
env SM_HOSTS='["algo-1","algo-2"]' SM_CURRENT_HOST=algo-3 ddprun true
env SM_HOSTS=algo-1 ddprun true
)");
    section("Programs", R"(
ddprun ./none
ddprun no-such-program
ddprun model
ddprun stauts
ddprun help
ddprun ./folder
ddprun ./data.txt
ddprun ./script
ddprun ./windows
ddprun none.py
ddprun folder.py
ddprun data.txt/train.py
ddprun --no-python ./train.py
ddprun torchrun train.py
ddprun python3 -m torch.distributed.run train.py
ddprun --chdir=nowhere true
ddprun --chdir=folder train.py
)");
    section("Programs that only the kernel refuses", Lines::kSeveral, R"(
ddprun ./words
ddprun ./empty
)");
    section("Places for files", R"(
ddprun --log-dir=data.txt true
ddprun --report-file=nowhere/report.json true
ddprun --report-file=folder true
ddprun --report-file=/dev/null true
ddprun --on-end= true
)");
  }

  void try_keys() {
    section("Keys and certificates", R"(
ddprun --rdzv-endpoint=node0 --rdzv-key-file=none.key true
ddprun --rdzv-endpoint=node0 --rdzv-key-file=folder true
ddprun --rdzv-endpoint=node0 --rdzv-key-file=empty.key true
ddprun --rdzv-endpoint=node0 --rdzv-key-file=short.key true
ddprun --rdzv-endpoint=node0 --rdzv-key-file=three.key true
ddprun --rdzv-endpoint=node0 --rdzv-key-file=job1.key true
ddprun --rdzv-endpoint=node0 --rdzv-tls-cert=node.crt true
ddprun --rdzv-endpoint=node0 --rdzv-tls-key=node.key true
ddprun --rdzv-endpoint=node0 --rdzv-tls-cert=none.pem --rdzv-tls-key=node.key true
ddprun --rdzv-endpoint=node0 --rdzv-tls-cert=nonsense.pem --rdzv-tls-key=node.key true
ddprun --rdzv-endpoint=node0 --rdzv-tls-cert=node.crt --rdzv-tls-key=nonsense.pem true
ddprun --rdzv-endpoint=node0 --rdzv-tls-cert=node.crt --rdzv-tls-key=other.key true
ddprun --rdzv-endpoint=node0 --rdzv-tls-ca=nonsense.pem true
ddprun --rdzv-endpoint=node0 --rdzv-tls-ca=folder true
ddprun --rdzv-endpoint=$FREE --rdzv-tls-ca=ours.ca true
)");
    section("A key file that others can read, and nodes that do not come", Lines::kSeveral, R"(
ddprun --nnodes=2 --rdzv-endpoint=$FREE --rdzv-key-file=open.key --rdzv-conf=join_timeout=0.5 true
ddprun --nnodes=2 --node-rank=0 --rdzv-endpoint=$FREE --rdzv-conf=join_timeout=0.5 true
)");
  }

  void try_services() {
    auto store = serve("STORE", {"ddp-store"});
    auto plain = serve("PLAIN", {"ddp-rendezvous", "--munge-socket=none"});
    auto keyed = serve("KEYED", {"ddp-rendezvous", "--rdzv-key-file=key"});
    auto tls = serve("TLS", {"ddp-rendezvous", "--rdzv-tls-cert=node.crt",
                             "--rdzv-tls-key=node.key", "--rdzv-tls-ca=ours.ca"});
    section("A port at which another program ends each connection", Lines::kSeveral, R"(
ddprun --rdzv-endpoint=$STORE true
)");
    section("Peers: a port that is taken, services that refuse, none at all", R"(
ddprun --master-port=$TAKEN true
ddprun --port-range=$TAKEN true
ddprun --nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master-port=1 --rdzv-conf=timeout=0.5 true
ddprun --rdzv-endpoint=$KEYED true
ddprun --rdzv-endpoint=$KEYED --rdzv-key-file=wrong.key true
ddprun --rdzv-endpoint=$PLAIN --rdzv-key-file=key true
ddprun --rdzv-endpoint=$TLS true
ddprun --rdzv-endpoint=$TLS --rdzv-tls-ca=ours.ca true
ddprun --rdzv-endpoint=$TLS --rdzv-tls-ca=theirs.ca true
ddprun --rdzv-endpoint=$PLAIN --rdzv-tls-ca=ours.ca true
)");
    const FakeEtcd without_quorum("", "");
    const FakeEtcd old("404 Not Found", "404 page not found\n");
    // Its leader key has "other".
    const FakeEtcd foreign("200 OK",
                           R"({"header":{"revision":"5"},"kvs":[{"key":"eA==","value":"b3RoZXI=",)"
                           R"("create_revision":"3","mod_revision":"3","lease":"7"}]})");
    auto expired = serve(
        "EXPIRED", {"ddp-rendezvous", "--rdzv-tls-cert=expired.crt", "--rdzv-tls-key=expired.key"});
    add_place("NO_QUORUM", without_quorum.endpoint());
    add_place("OLD_ETCD", old.endpoint());
    add_place("FOREIGN", foreign.endpoint());
    add_place("CONF", "--rdzv-id=j --rdzv-conf=join_timeout=1");
    section("etcd that is not there, has no quorum, is too old, is another's, or has expired",
            Lines::kSeveral, R"(
ddprun --rdzv-backend=etcd --rdzv-endpoint=$FREE $CONF true
ddprun --rdzv-backend=etcd --rdzv-endpoint=$NO_QUORUM $CONF true
ddprun --rdzv-backend=etcd --rdzv-endpoint=$OLD_ETCD $CONF true
ddprun --rdzv-backend=etcd --rdzv-endpoint=$FOREIGN $CONF true
ddprun --rdzv-backend=etcd --rdzv-endpoint=$EXPIRED $CONF,protocol=https,cacert=ours.ca true
)");
    end(*expired);
    section("ddprun status, top, logs, stop, restart, signal and flight", R"(
ddprun status no-such-job
ddprun status one two
ddprun status --jsn
ddprun status --rank=1
ddprun status --json=1
ddprun status --rdzv-endpoint
ddprun status --rdzv-endpoint=
ddprun status --rdzv-endpoint=127.0.0.1:x
ddprun status --rdzv-endpoint=127.0.0.1:1
ddprun status --rdzv-backend=etcd j
ddprun status --rdzv-backend=etcd --rdzv-endpoint=127.0.0.1:1
ddprun status --rdzv-backend=etcd --rdzv-endpoint=127.0.0.1:1 j
ddprun status --rdzv-backend=static --rdzv-endpoint=127.0.0.1:1 j
ddprun status --rdzv-endpoint=no-such-host.invalid
ddprun status --rdzv-endpoint=$STORE
ddprun status --rdzv-endpoint=$PLAIN no-such-job
ddprun status --rdzv-endpoint=$KEYED no-such-job
ddprun status --rdzv-endpoint=$TLS no-such-job
ddprun status --rdzv-key-file=key
ddprun top no-such-job
ddprun top one two
ddprun top --json
ddprun top --once=1
ddprun top --rdzv-endpoint=127.0.0.1:1
ddprun top --rdzv-endpoint=$PLAIN
ddprun top --rdzv-endpoint=$KEYED no-such-job
ddprun dashboard no-such-job
ddprun dashboard one two
ddprun dashboard --json
ddprun dashboard --open=firefox
ddprun dashboard --rdzv-endpoint=127.0.0.1:1
ddprun dashboard --rdzv-endpoint=$KEYED no-such-job
ddprun logs no-such-job
ddprun logs --rank=x
ddprun logs -n -1
ddprun logs -n
ddprun logs --rdzv-endpoint=node0 no-such-job
ddprun stop no-such-job
ddprun stop --timeout=soon
ddprun stop --now=yes
ddprun stop --rdzv-endpoint=node0
ddprun stop --rdzv-endpoint=$PLAIN no-such-job
ddprun restart no-such-job
ddprun restart --now
ddprun signal
ddprun signal SIGNONSENSE
ddprun signal 99
ddprun flight no-such-job
ddprun flight no-such-file.json
ddprun flight no-such-file.json no-such-job
ddprun flight --rdzv-endpoint=node0 no-such-file.json
ddprun flight --last=1025
ddprun flight --chrome-trace
ddprun flight --lines=3
ddprun flight --pid=1,
ddprun flight --pid=-1
ddprun flight --pid=4711 no-such-job
ddprun flight --pid=999999999
ddprun signal USR1 no-such-job
ddprun trace
ddprun trace no-such-job
ddprun trace -o trace.txt no-such-job
ddprun trace -o trace.json no-such-job
ddprun trace -o trace.json no-such-file.json
ddprun trace -o trace.json --last=3
)");
    for (ChildProcess* service : {store.get(), plain.get(), keyed.get(), tls.get()}) end(*service);
  }

  void try_jobs() {
    const auto begin = [&] {
      auto running = started(
          {"ddprun", std::string("--rdzv-id=") + kJob, "sh", "-c", until_go_after("echo up")});
      EXPECT_TRUE(running->wait_for_out("up")) << running->err();
      return running;
    };
    auto one = begin();
    section("Commands for a running job", R"(
ddprun logs --rank=7 train-bad-inputs
ddprun flight --rank=7 train-bad-inputs
ddprun signal --rank=7 USR1 train-bad-inputs
ddprun stop --timeout=0 --rdzv-endpoint=127.0.0.1:1 train-bad-inputs
)");
    auto two = begin();
    section("Several jobs", Lines::kSeveral, R"(
ddprun status
ddprun stop train-bad-inputs
ddprun logs no-such-job
)");
    let_go();
    EXPECT_EQ(one->wait(), 0);
    EXPECT_EQ(two->wait(), 0);
  }

  void try_other_programs() {
    section("ddprun doctor, completion and man-page", R"(
ddprun doctor --jsn
ddprun doctor --nonsense
ddprun doctor --libtorch
ddprun doctor --dry-run
ddprun doctor --nnodes=x
ddprun doctor --nnodes=2 --rdzv-endpoint=node0 --rdzv-key-file=none.key
ddprun completion
ddprun completion fish
ddprun completion bash zsh
ddprun man-page ddprun
)");
    section("ddp-rendezvous", R"(
ddp-rendezvous
ddp-rendezvous --listn=127.0.0.1:0
ddp-rendezvous --nonsense
ddp-rendezvous 127.0.0.1:0
ddp-rendezvous --listen
ddp-rendezvous --listen=29400
ddp-rendezvous --listen=localhost:29400
ddp-rendezvous --listen=127.0.0.1:70000
ddp-rendezvous --listen=::1:29400
ddp-rendezvous --listen=198.51.100.1:29400
ddp-rendezvous --listen=127.0.0.1:$TAKEN
ddp-rendezvous --listen=127.0.0.1:0 --lease=0
ddp-rendezvous --listen=127.0.0.1:0 --lease=5 --heartbeat-interval=3
ddp-rendezvous --listen=127.0.0.1:0 --heartbeat-interval=often
ddp-rendezvous --listen=127.0.0.1:0 --require-auth=maybe
ddp-rendezvous --listen=*:0 --require-auth --munge-socket=none
ddp-rendezvous --listen=127.0.0.1:0 --state-dir=data.txt
ddp-rendezvous --listen=127.0.0.1:0 --state-dir=state
ddp-rendezvous --listen=127.0.0.1:0 --state=state
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1/p --state-dir=other
ddp-rendezvous --listen=127.0.0.1:0 --state=http://h1:2379/ddprun
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1:port/ddprun
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1,,h2/ddprun
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1,h2,h1:2379/ddprun
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://me:secret@h1/ddprun
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1//ddprun
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1 --advertise=h1
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1 --etcd-user=me
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1 --etcd-user=me --etcd-password-file=none.key
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1 --etcd-password-file=key
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1 --etcd-cert=node.crt --etcd-key=node.key
ddp-rendezvous --listen=127.0.0.1:0 --state=etcd://h1 --etcd-ca=nonsense.pem
ddp-rendezvous --listen=127.0.0.1:0 --state-dir=other --advertise=h1:29400
ddp-rendezvous --listen=127.0.0.1:0 --rdzv-key-file=none.key
ddp-rendezvous --listen=127.0.0.1:0 --rdzv-key-file=empty.key
ddp-rendezvous --listen=127.0.0.1:0 --rdzv-tls-ca=ours.ca
ddp-rendezvous --listen=[::]:0 --rdzv-tls-cert=node.crt --rdzv-tls-key=node.key --rdzv-tls-ca=system
ddp-rendezvous --print-read-token
ddp-rendezvous --print-read-token --rdzv-key-file=job1.key
ddp-rendezvous --print-write-token
ddp-rendezvous --print-write-token --rdzv-key-file=job1.key
)");
    section("ddp-store", R"(
ddp-store
ddp-store --listn=127.0.0.1:0
ddp-store --listen=127.0.0.1:$TAKEN
ddp-store --listen=127.0.0.1:0 --max-keys=0
ddp-store --listen=127.0.0.1:0 --max-keys=-1
ddp-store --listen=127.0.0.1:0 --max-value-bytes=64XiB
ddp-store --listen=127.0.0.1:0 --max-held-bytes=9999TiB
ddp-store --listen=127.0.0.1:0 --legacy-dialect=l3
ddp-store --listen=127.0.0.1:0 --store-allow=everybody
)");
  }

  void compare_with_golden() const {
    const std::string now = kHead + now_;
    if (std::getenv("DDPRUN_WRITE_GOLDEN")) {
      std::ofstream(kGolden) << now;
      return;
    }
    const std::string golden = read_file(kGolden);
    if (now == golden) return;
    const auto expected = cases_of(golden);
    const auto answered = cases_of(now);
    for (const auto& [command, answer] : answered) {
      const auto found = expected.find(command);
      if (found == expected.end()) {
        ADD_FAILURE() << "not in the file:\n$ " << command << "\n" << answer;
      } else if (found->second != answer) {
        ADD_FAILURE() << "$ " << command << "\n--- the file has\n"
                      << found->second << "--- it should have\n"
                      << answer;
      }
    }
    for (const auto& [command, answer] : expected) {
      if (!answered.contains(command)) ADD_FAILURE() << "in the file, and not run:\n$ " << command;
    }
    FAIL() << kGolden << " is not what the programs say; DDPRUN_WRITE_GOLDEN=1 writes it anew";
  }

 private:
  Variables places_;  // addresses of the services, by the name of their variable
  std::string now_;
};

TEST_F(BadInputs, AreAnsweredWordForWord) {
  const HeldPort free;
  add_place("FREE", free.endpoint());
  const Result<Listener> taken = listen_tcp("127.0.0.1", PortRange{20000, 29000});
  ASSERT_TRUE(taken) << taken.error().message();
  add_place("TAKEN", std::to_string(taken->address.port));
  const Authority authority(directory_.path(), "ours");
  const Authority theirs(directory_.path(), "theirs");
  for (const char* name : {"node", "other"}) authority.issue(name);
  authority.issue("expired", {.valid_for = -std::chrono::hours(1)});
  ASSERT_NO_FATAL_FAILURE(try_command_lines());
  ASSERT_NO_FATAL_FAILURE(try_files_and_programs());
  ASSERT_NO_FATAL_FAILURE(try_keys());
  ASSERT_NO_FATAL_FAILURE(try_ssh());
  ASSERT_NO_FATAL_FAILURE(try_services());
  ASSERT_NO_FATAL_FAILURE(try_jobs());
  ASSERT_NO_FATAL_FAILURE(try_other_programs());
  compare_with_golden();
}

}  // namespace
}  // namespace ddprun::testing_support
