#include "launcher/options/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>

#include "launcher/process/core/shell_words.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

using Arguments = std::vector<std::string>;

LaunchOptions parse(const Arguments& arguments) {
  Result<CommandLine> line = parse_command_line(arguments);
  EXPECT_TRUE(line) << (line ? "" : line.error().message());
  return line ? line->options : LaunchOptions{};
}

std::string error_of(const Arguments& arguments) {
  const Result<CommandLine> line = parse_command_line(arguments);
  EXPECT_FALSE(line);
  return line ? "" : line.error().message();
}

TEST(CommandLine, TakesDashesOrUnderscoresEqualsSignOrSpace) {
  for (const Arguments& arguments : std::vector<Arguments>{{"--nproc-per-node=2", "./train"},
                                                           {"--nproc_per_node=2", "./train"},
                                                           {"--nproc-per-node", "2", "./train"},
                                                           {"--nproc_per_node", "2", "./train"}}) {
    const LaunchOptions options = parse(arguments);
    EXPECT_EQ(options.slots.number, 2);
    EXPECT_EQ(options.program, "./train");
  }
}

TEST(CommandLine, EverythingAfterTheProgramIsTheProgramsOwn) {
  const LaunchOptions options =
      parse({"--standalone", "./train", "--nnodes=9", "-m", "--help", "x"});
  EXPECT_TRUE(options.standalone);
  EXPECT_EQ(options.nodes, (NodeRange{1, 1}));
  EXPECT_EQ(options.args, (Arguments{"--nnodes=9", "-m", "--help", "x"}));
}

TEST(CommandLine, ADoubleDashEndsTheOptions) {
  const LaunchOptions options = parse({"--standalone", "--", "./train", "--", "-x"});
  EXPECT_EQ(options.program, "./train");
  EXPECT_EQ(options.args, (Arguments{"--", "-x"}));
}

// As with torchrun, which then chooses the backend itself.
TEST(CommandLine, StandaloneDoesNotLookAtTheBackend) {
  const LaunchOptions options = parse({"--standalone", "--rdzv-backend=zeus", "./train"});
  EXPECT_THAT(options.remarks, Contains("--rdzv-backend has no effect: --standalone chooses it"));
  EXPECT_THAT(error_of({"--rdzv-backend=zeus", "./train"}), HasSubstr("invalid value 'zeus'"));
}

TEST(CommandLine, ReadsEveryOption) {
  const Arguments given{"--nproc-per-node=6",
                        "--nnodes=2:4",
                        "--node-rank=1",
                        "--standalone",
                        "--no-detect",
                        "--signals-to-handle=TERM,SIGINT",
                        "--rdzv-endpoint=h:1",
                        "--rdzv-id=j",
                        "--rdzv-backend=c10d",
                        "--rdzv-conf=a=1",
                        "--rdzv-key-file=/k",
                        "--munge-socket=/m",
                        "--rdzv-tls-cert=/c",
                        "--rdzv-tls-key=/s",
                        "--rdzv-tls-ca=/a",
                        "--require-auth",
                        "--store-allow=10.0.0.0/8,::1",
                        "--port-range=7-9",
                        "--max-restarts=3",
                        "--restart-window=60",
                        "--restart-on-progress",
                        "--hang-timeout=600",
                        "--no-restart-on=2,64-78",
                        "--on-join=checkpoint",
                        "--node-failures=2",
                        "--node-check=core=20",
                        "--lease=20",
                        "--heartbeat-interval=0.5",
                        "--monitor-interval=5",
                        "--start-method=fork",
                        "--run-path",
                        "--virtual-local-rank",
                        "--chdir=/d",
                        "--env=A=1",
                        "--env=B=2",
                        "--umask=027",
                        "--bind=core",
                        "--numa-binding=core-complex",
                        "--worker-store=rank0",
                        "--gpu-visibility=own",
                        "--local-ranks-filter=0,2",
                        "--event-log-handler=null",
                        "--logs-specs=default",
                        "--master-addr=m",
                        "--master-port=7",
                        "--no-python",
                        "--module",
                        "--log-dir=/l",
                        "--redirects=3",
                        "--tee=0:1",
                        "--role=trainer",
                        "--log-max-bytes=1M",
                        "--pty",
                        "--stdin",
                        "--quiet",
                        "--verbose",
                        "--log-format=json",
                        "--report-file=/r",
                        "--on-end=mail me",
                        "--on-failure=mail you",
                        "--local-addr=10.0.0.9",
                        "--shutdown-grace=1.5",
                        "--shutdown-timeout=2",
                        "--log-line-prefix-template=<${rank}>",
                        "--checkpoint-signal=USR1",
                        "--hosts=a:4,b",
                        "--hostfile=/f",
                        "--ssh=ssh -p 2222",
                        "--connect-timeout=30",
                        "--copy=x",
                        "--copy=y",
                        "--requeue=10",
                        "--save-before-end=300",
                        "prog"};
  for (const OptionSpec& option : option_table()) {
    if (option.group == "General") continue;
    EXPECT_TRUE(std::any_of(
        given.begin(), given.end(),
        [&](const std::string& one) { return one.substr(0, one.find('=')) == "--" + option.name; }))
        << option.name << " is not tried here";
  }
  const LaunchOptions options = parse(given);
  EXPECT_EQ(options.slots.number, 6);
  EXPECT_TRUE(options.standalone);
  EXPECT_TRUE(options.no_detect);
  EXPECT_EQ(options.rdzv_key_file, "/k");
  EXPECT_EQ(options.munge_socket, "/m");
  EXPECT_EQ(options.rdzv_tls_cert, "/c");
  EXPECT_EQ(options.rdzv_tls_key, "/s");
  EXPECT_EQ(options.rdzv_tls_ca, "/a");
  EXPECT_TRUE(options.require_auth);
  EXPECT_EQ(options.store_allow, "10.0.0.0/8,::1");
  EXPECT_EQ(options.ports, (PortRange{7, 9}));
  EXPECT_EQ(options.on_join, OnJoin::kCheckpoint);
  EXPECT_EQ(options.node_failures, 2);
  ASSERT_TRUE(options.node_check);
  EXPECT_EQ(options.node_check->core, std::chrono::milliseconds(20));
  EXPECT_EQ(options.times.lease, std::chrono::seconds(20));
  EXPECT_EQ(options.times.heartbeat(), std::chrono::milliseconds(500));
  EXPECT_EQ(options.nodes, (NodeRange{2, 4}));
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rdzv_endpoint, "h:1");
  EXPECT_EQ(options.rdzv_id, "j");
  EXPECT_EQ(options.rdzv_backend, RdzvBackend::kC10d);
  EXPECT_EQ(options.rdzv_conf.at("a"), "1");
  EXPECT_EQ(options.max_restarts, 3);
  EXPECT_EQ(options.restart_rules.window, std::chrono::seconds(60));
  EXPECT_EQ(to_text(options.restart_rules.final_codes), "2,64-78");
  EXPECT_TRUE(options.restart_rules.on_progress);
  EXPECT_EQ(options.hang_timeout, std::chrono::seconds(600));
  EXPECT_EQ(options.master_addr, "m");
  EXPECT_EQ(options.master_port, 7);
  EXPECT_TRUE(options.no_python);
  EXPECT_TRUE(options.module);
  EXPECT_EQ(options.log_dir, "/l");
  EXPECT_EQ(options.redirects.all, Streams::kBoth);
  EXPECT_EQ(options.tee.of(LocalRank(0)), Streams::kOut);
  EXPECT_EQ(options.role, "trainer");
  EXPECT_EQ(options.report_file, "/r");
  EXPECT_EQ(options.on_end, "mail me");
  EXPECT_EQ(options.on_failure, "mail you");
  EXPECT_EQ(options.local_addr, "10.0.0.9");
  EXPECT_EQ(options.grace, std::chrono::milliseconds(1500));
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(2));
  EXPECT_EQ(options.line_prefix, "<${rank}>");
  EXPECT_EQ(options.checkpoint_signal, SIGUSR1);
  EXPECT_EQ(options.hosts, (std::vector<HostEntry>{{"a", 4}, {"b", std::nullopt}}));
  EXPECT_EQ(options.hostfile, "/f");
  EXPECT_EQ(options.ssh, (std::vector<std::string>{"ssh", "-p", "2222"}));
  EXPECT_EQ(options.connect_timeout, std::chrono::seconds(30));
  EXPECT_EQ(options.copies, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(options.run_path);
  EXPECT_TRUE(options.virtual_local_rank);
  EXPECT_EQ(options.directory, "/d");
  EXPECT_EQ(options.variables,
            (std::vector<std::pair<std::string, std::string>>{{"A", "1"}, {"B", "2"}}));
  EXPECT_EQ(options.file_mask, 027u);
  EXPECT_EQ(options.bind, BindPolicy::kCore);
  EXPECT_EQ(options.numa_binding, BindPolicy::kCoreComplex);
  EXPECT_EQ(options.worker_store, WorkerStore::kRank0);
  EXPECT_EQ(options.gpu_visibility, GpuVisibility::kOwn);
  EXPECT_TRUE(options.shows(LocalRank(0)) && options.shows(LocalRank(2)));
  EXPECT_FALSE(options.shows(LocalRank(1)));
  EXPECT_THAT(options.remarks, testing::IsEmpty()) << "options that do no harm warn at no start";
}

TEST(CommandLine, NodeCheckIsASwitchOrHasLimits) {
  EXPECT_EQ(parse({"p"}).node_check, std::nullopt);
  EXPECT_EQ(parse({"--node-check", "p"}).node_check, NodeLimits());
  EXPECT_EQ(parse({"--node-check=true", "p"}).node_check, NodeLimits());
  EXPECT_EQ(parse({"--node-check", "--node-check=false", "p"}).node_check, std::nullopt);
  NodeLimits limits;
  limits.memory = 4e9;
  EXPECT_EQ(parse({"--node-check=memory=4000", "p"}).node_check, limits);
}

// A script passes an empty value if a variable is unset.
TEST(CommandLine, AnEmptyValueIsOneAndNotTheNextArgument) {
  for (const char* name : {"--rdzv-conf=", "--rdzv_conf=", "--rdzv-endpoint=", "--log-dir="}) {
    const LaunchOptions options = parse({name, "./train", "--rdzv-conf=", "x"});
    EXPECT_EQ(options.program, "./train") << name;
    EXPECT_EQ(options.args, (Arguments{"--rdzv-conf=", "x"})) << "these are the program's";
  }
  EXPECT_EQ(parse({"--rdzv-id", "--role=", "./train"}).rdzv_id, "--role=") << "it is a value";
  EXPECT_THAT(error_of({"--nproc-per-node=", "./train"}),
              HasSubstr("--nproc-per-node: invalid value ''"));
  EXPECT_EQ(error_of({"--standalone=", "./train"}),
            "--standalone: invalid value '' (expected true, false, 1 or 0)");
  for (const char* name : {"--rdzv-key-file", "--config", "--rdzv-id"}) {
    EXPECT_EQ(error_of({std::string(name) + "=", "./train"}),
              std::string(name) + ": empty value (give one, or leave the option out)");
  }
}

// argparse accepts such prefixes for torchrun. ddprun's own options must be written in full.
TEST(CommandLine, TheBeginningOfOneOfTorchrunsOptionsIsTakenForIt) {
  EXPECT_TRUE(parse({"--stand", "p"}).standalone);
  EXPECT_EQ(parse({"--nproc-per=3", "p"}).slots.number, 3);
  EXPECT_EQ(parse({"--nproc_per", "3", "p"}).slots.number, 3);
  EXPECT_TRUE(parse({"--no-p", "p"}).no_python);
  EXPECT_EQ(parse({"--te", "3", "p"}).tee.all, Streams::kBoth);
  EXPECT_EQ(parse({"--role=x", "p"}).role, "x") << "a whole name is no beginning";
}

TEST(CommandLine, AShortOptionMayHaveItsValueBehindItsLetter) {
  const LaunchOptions options = parse({"-r3", "-t", "1", "p"});
  EXPECT_EQ(options.redirects.all, Streams::kBoth);
  EXPECT_EQ(options.tee.all, Streams::kOut);
}

TEST(CommandLine, SeveralLettersMayFollowOneDash) {
  for (const std::vector<std::string>& letters :
       {std::vector<std::string>{"-mr3"}, {"-mr", "3"}, {"-mmr3"}}) {
    std::vector<std::string> arguments = letters;
    arguments.push_back("p");
    const LaunchOptions options = parse(arguments);
    EXPECT_TRUE(options.module) << letters[0];
    EXPECT_EQ(options.redirects.all, Streams::kBoth) << letters[0];
    EXPECT_EQ(options.program, "p") << letters[0];
  }
  for (const char* wrong : {"-m_pty", "-m-pty", "-mx", "-x", "-5"})
    EXPECT_THAT(error_of({wrong, "p"}), HasSubstr("unknown option")) << wrong;
  EXPECT_THAT(error_of({"-mr=3", "p"}), HasSubstr("--redirects: invalid value '=3'"));
}

TEST(CommandLine, WhatTorchrunHasAndCannotBeHereSaysWhatToDo) {
  EXPECT_THAT(error_of({"--duplicate_stdout_filters=x", "./train"}),
              HasSubstr("of torchrun is not supported: give -t 1 and search its files"));
  EXPECT_THAT(error_of({"--numa-binding=numa", "./train"}),
              HasSubstr("expected node, socket, exclusive or core-complex"));
  EXPECT_THAT(error_of({"--event-log-handler=console", "./train"}),
              HasSubstr("--event-log-handler: invalid value 'console' (expected null; for events "
                        "see /status.json"));
  EXPECT_THAT(error_of({"--start-method=thread", "./train"}), HasSubstr("spawn, fork or"));
  EXPECT_THAT(error_of({"--local-ranks-filter=0,x", "./train"}), HasSubstr("such as 0,2"));
  EXPECT_TRUE(parse({"./train"}).shows(LocalRank(7)));
}

TEST(CommandLine, ASwitchMayBeTakenBackByItsValueAndTakesNoOther) {
  EXPECT_FALSE(parse({"--standalone=false", "p"}).standalone);
  EXPECT_FALSE(parse({"--no_python", "--no-python=0", "p"}).no_python) << "the last one counts";
  EXPECT_TRUE(parse({"--no-python=true", "p"}).no_python);
  EXPECT_TRUE(parse({"-m", "p"}).module);
  EXPECT_EQ(error_of({"--standalone=maybe", "p"}),
            "--standalone: invalid value 'maybe' (expected true, false, 1 or 0)");
}

TEST(CommandLine, TheLastOfARepeatedOptionCounts) {
  EXPECT_EQ(parse({"--max-restarts=1", "--max-restarts=2", "p"}).max_restarts, 2);
}

TEST(CommandLine, TheEnvironmentStandsInForWhatIsNotGiven) {
  setenv("PET_NPROC_PER_NODE", "5", 1);
  setenv("PET_STANDALONE", "1", 1);
  EXPECT_EQ(parse({"p"}).slots.number, 5);
  EXPECT_TRUE(parse({"p"}).standalone);
  EXPECT_EQ(parse({"--nproc-per-node=2", "p"}).slots.number, 2);
  setenv("PET_STANDALONE", "yes", 1);
  EXPECT_EQ(error_of({"p"}), "PET_STANDALONE: invalid value 'yes' (expected true, false, 1 or 0)");
  unsetenv("PET_NPROC_PER_NODE");
  unsetenv("PET_STANDALONE");
}

TEST(CommandLine, AVariableThatStandsForNoOptionIsNotPassedOverInSilence) {
  setenv("PET_NPROC_PER_NOD", "5", 1);
  setenv("PET_UNHEARD_OF", "5", 1);
  EXPECT_THAT(
      parse({"p"}).remarks,
      testing::ElementsAre("PET_NPROC_PER_NOD has no effect: did you mean PET_NPROC_PER_NODE?"));
  unsetenv("PET_NPROC_PER_NOD");
  unsetenv("PET_UNHEARD_OF");
  setenv("PET_DUPLICATE_STDOUT_FILTERS", "loss", 1);
  EXPECT_THAT(error_of({"p"}),
              HasSubstr("PET_DUPLICATE_STDOUT_FILTERS of torchrun is not supported"));
  unsetenv("PET_DUPLICATE_STDOUT_FILTERS");
}

TEST(CommandLine, AnEmptyBackendIsNone) {
  EXPECT_EQ(parse({"--rdzv-backend=", "p"}).rdzv_backend, std::nullopt);
  EXPECT_EQ(parse({"--rdzv-backend=etcd-v2", "p"}).rdzv_backend, RdzvBackend::kEtcdV2);
}

TEST(CommandLine, NamesWhatIsWrongInOneLine) {
  const std::vector<std::pair<Arguments, std::string>> cases{
      {{"--nproc-per-mode=2", "p"}, "did you mean --nproc-per-node"},
      {{"--max_restort=1", "p"}, "did you mean --max-restarts"},
      {{"--le=1", "p"}, "unknown option --le"},
      {{"--rdzv=h", "p"},
       "--rdzv is ambiguous: --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf"},
      {{"--signals=USR1", "p"},
       "--signals-to-handle: invalid value 'USR1' (expected signals that end a job; "},
      {{"--frobnicate", "p"}, "unknown option --frobnicate"},
      {{"-x", "p"}, "unknown option -x"},
      {{"--nnodes=3:2", "p"}, "--nnodes: invalid value '3:2'"},
      {{"--nproc-per-node=0", "p"}, "at least 1 worker"},
      {{"--max-restarts=-1", "p"}, "--max-restarts"},
      {{"--master-port=70000", "p"}, "--master-port"},
      {{"--restart-window=-1", "p"}, "--restart-window: "},
      {{"--checkpoint-signal=KILL", "p"},
       "--checkpoint-signal: invalid value 'KILL' (expected USR1, USR2, TERM, HUP"},
      {{"--no-restart-on=2,x", "p"},
       "--no-restart-on: invalid value 'x' (expected an exit code from 1 to 255"},
      {{"--rdzv-backend=etcd-v3", "p"},
       "--rdzv-backend: invalid value 'etcd-v3' (expected c10d, static, etcd or etcd-v2; "},
      {{"--nnodes"}, "--nnodes: the value is missing (expected "},
      {{"--signals-to-handle=SIGTERM,FOO", "p"},
       "--signals-to-handle: invalid value 'FOO' (expected signals"},
      {{"--nprocs=2", "p"}, "did you mean --nproc-per-node"},
      {{"-np", "2", "p"}, "did you mean --nproc-per-node"},
      {{"-n", "2", "p"}, "unknown option -n; ddprun --help lists them"},
      {{"--standalone"}, "the program is missing"},
      {{"-m"}, "the module is missing"},
      {{}, "the program is missing"},
  };
  for (const auto& [arguments, expected] : cases) {
    const std::string message = error_of(arguments);
    EXPECT_THAT(message, HasSubstr(expected));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }
}

TEST(CommandLine, HelpAndVersionNeedNoProgram) {
  EXPECT_EQ(parse_command_line({"--help"})->options.command, LaunchCommand::kHelp);
  EXPECT_EQ(parse_command_line({"-h", "p"})->options.command, LaunchCommand::kHelp);
  EXPECT_EQ(parse_command_line({"--version"})->options.command, LaunchCommand::kVersion);
}

// ConfigOfTest: a config file. This file has its own class because it needs none of the other
// test files.
class ConfigOfTest {
 public:
  explicit ConfigOfTest(const std::string& text) : path_(directory_.path() + "/job.json") {
    std::ofstream(path_) << text;
  }
  const std::string& path() const { return path_; }
  std::string option() const { return "--config=" + path_; }

 private:
  testing_support::TemporaryDirectory directory_;
  std::string path_;
};

TEST(CommandLine, TheCommandLineBeatsTheEnvironmentWhichBeatsTheFile) {
  const ConfigOfTest file(R"({"nproc-per-node": 2, "max_restarts": 3, "role": "f"})");
  setenv("PET_MAX_RESTARTS", "4", 1);
  setenv("PET_ROLE", "e", 1);
  const Result<CommandLine> line = parse_command_line({file.option(), "--role=c", "p"});
  unsetenv("PET_MAX_RESTARTS");
  unsetenv("PET_ROLE");
  ASSERT_TRUE(line) << line.error().message();
  EXPECT_EQ(line->options.slots.number, 2);
  EXPECT_EQ(line->options.max_restarts, 4);
  EXPECT_EQ(line->options.role, "c");
  std::map<std::string, std::string> sources;
  for (const OptionSetting& one : line->settings) sources[one.option->name] = one.source;
  EXPECT_EQ(sources["nproc-per-node"], file.path());
  EXPECT_EQ(sources["max-restarts"], "PET_MAX_RESTARTS");
  EXPECT_EQ(sources["role"], "command line");
  EXPECT_EQ(sources["nnodes"], "default");
}

TEST(CommandLine, TheFileMayNameTheProgramWhichTheCommandLineReplaces) {
  const ConfigOfTest file(R"({"program": "train.py", "args": ["--lr", 0.5]})");
  const LaunchOptions options = parse({file.option()});
  EXPECT_EQ(options.program, "train.py");
  EXPECT_EQ(options.args, (Arguments{"--lr", "0.5"}));
  EXPECT_EQ(parse({file.option(), "./other"}).program, "./other");
  EXPECT_TRUE(parse({file.option(), "./other"}).args.empty()) << "they belong to the other program";
}

TEST(CommandLine, AWrongValueInTheFileIsNamedWithTheFile) {
  const ConfigOfTest file(R"({"nnodes": "3:2"})");
  EXPECT_THAT(error_of({file.option(), "p"}),
              HasSubstr("--config: " + file.path() + ": 'nnodes': invalid value '3:2'"));
  setenv("PET_CONFIG", file.path().c_str(), 1);
  EXPECT_THAT(error_of({"p"}),
              HasSubstr("PET_CONFIG: " + file.path() + ": 'nnodes': invalid value '3:2'"));
  unsetenv("PET_CONFIG");
  EXPECT_THAT(error_of({"--config=/no/such", "p"}), HasSubstr("--config: open /no/such: "));
}

TEST(CommandLine, EveryExampleOfHelpIsTaken) {
  for (const OptionSpec& option : option_table()) {
    const std::string& example = option.example;
    if (option.name == "config") continue;  // the file of the example does not exist
    Arguments arguments = *split_shell_words(example);
    const Arguments::difference_type own = arguments.front().find('=') != std::string::npos ? 1 : 2;
    if (static_cast<Arguments::difference_type>(arguments.size()) < own) arguments.push_back("p");
    arguments.push_back("p");
    EXPECT_TRUE(parse_command_line(arguments)) << example;
  }
}

TEST(CommandLine, HowElasticTheJobIsHasDefaultsAndBounds) {
  const LaunchOptions defaults = parse({"./train"});
  EXPECT_EQ(defaults.on_join, OnJoin::kNow);
  EXPECT_EQ(defaults.node_failures, 3);
  EXPECT_EQ(defaults.times.lease, kDefaultLease);
  EXPECT_EQ(error_of({"--on-join=soon", "./train"}),
            "--on-join: invalid value 'soon' (expected now, checkpoint or restart)");
  EXPECT_THAT(error_of({"--node-failures=0", "./train"}), HasSubstr("--node-failures"));
  EXPECT_THAT(error_of({"--lease=0", "./train"}), HasSubstr("500 ms to 60.0 min"));
}

}  // namespace
}  // namespace ddprun
