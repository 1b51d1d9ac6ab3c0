#include "launcher/agent/output_drain.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <future>
#include <string>

#include "base/pipe.h"
#include "base/unique_fd.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using testing_support::TemporaryDirectory;

// Reads until the end, or until `enough` bytes are there.
std::size_t read_bytes(int descriptor, std::size_t enough) {
  std::string block(1 << 16, '\0');
  std::size_t count = 0;
  while (count < enough) {
    const ssize_t got = read(descriptor, block.data(), block.size());
    if (got <= 0) break;
    count += got;
  }
  return count;
}

// Opening a FIFO blocks until it has a reader, like a disk that hangs.
TEST(OutputDrain, LogFilesThatAreLateDoNotEndTheWaitForTheConsole) {
  const TemporaryDirectory directory;
  const std::string fifo = directory / "stdout.log";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  LogWriter logs({});
  const auto file = logs.open(fifo);
  ASSERT_TRUE(file);
  logs.write(**file, "late\n");

  Pipe terminal = make_pipe().value();
  ConsoleWriter console([] {}, {.descriptors = {terminal.write.get(), terminal.write.get()}});
  const std::string text = std::string(1 << 20, 'x') + "\n";  // more than a pipe takes
  console.say(ConsoleStream::kOut, text);

  std::promise<void> gave_up;
  Logger log("test", [&](std::string_view) { gave_up.set_value(); });
  boost::asio::io_context io;
  OutputDrain drain(io, log, logs, console);
  drain.hurry();
  std::atomic<bool> reads_console = false;
  std::future<void> flushing = std::async(std::launch::async, [&] {
    drain.flush();
    EXPECT_TRUE(reads_console) << "the console has nothing, and its time was not over";
  });
  gave_up.get_future().wait();
  const UniqueFd late(open(fifo.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(read_bytes(late.get(), 5), 5u);
  flushing.wait_for(200ms);  // a drain that takes these files for the console ends now
  reads_console = true;
  EXPECT_EQ(read_bytes(terminal.read.get(), text.size()), text.size());
  flushing.get();
}

}  // namespace
}  // namespace ddprun
