// CommandFeed: what a command writes to stdout and stderr, as events for one browser
// (rendezvous/http/output_events.h). The command runs in a process of its own while the browser
// reads, and is killed when the browser has gone. Nothing here blocks.
//
// Owner: HttpEntry, on the thread of the io_context, which outlives it.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/http/output_events.h"
#include "rendezvous/http/paced_wake.h"

namespace ddprun {

class CommandFeed final : public HttpFeed, public std::enable_shared_from_this<CommandFeed> {
 public:
  // words: the program and its arguments. variables: added to its environment.
  CommandFeed(boost::asio::io_context& io, std::vector<std::string> words,
              std::map<std::string, std::string> variables)
      : io_(io), words_(std::move(words)), variables_(std::move(variables)), output_(io) {}
  ~CommandFeed() override;

  // Starts the command. If it cannot be started, the events say why.
  void begin(std::function<void()> wake) override;
  std::string take() override { return events_.take(); }

 private:
  struct Child;

  Result<void> start();
  void read();

  boost::asio::io_context& io_;
  const std::vector<std::string> words_;
  const std::map<std::string, std::string> variables_;
  boost::asio::posix::stream_descriptor output_;
  std::array<char, 16 * 1024> buffer_;
  OutputEvents events_;
  std::optional<PacedWake> wake_;
  std::shared_ptr<Child> child_;  // null: it was not started
};

}  // namespace ddprun
